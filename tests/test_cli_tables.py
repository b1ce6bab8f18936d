"""Tables that commands print: nothing is broken in the middle of a word, nothing is empty."""

from io import StringIO

from rich.console import Console

from kscout.cli.analyze import _table


def test_a_table_keeps_names_whole_and_leaves_out_what_tells_nothing() -> None:
    line = {"reconstruction": "total-variation", "acceleration": 4.0, "ssim_low": None, "ssim": 0.5}
    out = StringIO()
    Console(file=out, width=80).print(_table([line, {**line, "reconstruction": "unet"}]))
    text = out.getvalue()
    assert "total-variation" in text and "reconstruction" in text and "acceleration" in text
    assert "low" not in text and "4.0" not in text and " 4 " in text and "0.5000" in text
