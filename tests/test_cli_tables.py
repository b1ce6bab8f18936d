"""Tables and helps that commands print: no name is cut, nothing is empty."""

from collections.abc import Iterator
from io import StringIO
from typing import Any

from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from kscout.apps.cli import app
from kscout.apps.cli.evaluate import _table


def test_a_table_keeps_names_whole_and_leaves_out_what_tells_nothing() -> None:
    line = {"reconstruction": "total-variation", "acceleration": 4.0, "ssim_low": None, "ssim": 0.5}
    out = StringIO()
    Console(file=out, width=80).print(_table([line, {**line, "reconstruction": "unet"}]))
    text = out.getvalue()
    assert "total-variation" in text and "reconstruction" in text and "acceleration" in text
    assert "low" not in text and "4.0" not in text and " 4 " in text and "0.5000" in text


def _commands(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        is_group = hasattr(command, "list_commands")
        yield from _commands(command, (*above, name)) if is_group else [(*above, name)]


def test_help_names_every_option_whole_on_a_narrow_terminal() -> None:
    root = get_command(app)
    for words in _commands(root):
        command: Any = root
        for word in words:
            command = command.get_command(None, word)
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        names = [name for one in command.params for name in one.opts if name.startswith("-")]
        assert [name for name in names if name not in shown] == [], words
        assert max(map(len, shown.splitlines())) <= 80


def test_groups_tell_whole_sentences_of_their_commands() -> None:
    for words in ((), ("data",), ("analyze",)):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        assert "..." not in shown.partition("Commands:")[2] and "Commands:" in shown
