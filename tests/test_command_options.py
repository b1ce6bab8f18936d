"""Commands whose options are generated from a dataclass."""

from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from kscout.apps.cli import progress
from kscout.apps.cli.options import AsJson, from_fields
from kscout.apps.cli.progress import training_progress
from kscout.config.bounds import MATRIX, AtLeast, Between, Form
from kscout.runs import Progress


@dataclass(frozen=True, kw_only=True)
class Options:
    file: Annotated[Path, Form("FILE", is_argument=True)]
    """What is read."""
    as_json: AsJson = False
    count: Annotated[int, Between(1, 9)] = 3
    """How many of them
    are read."""
    share: Annotated[float | None, AtLeast(0.5)] = None
    size: Annotated[int | tuple[int, int] | None, MATRIX] = None
    names: Annotated[tuple[str, ...], Form(flags="--name -n", envvar="NAMES")] = ()
    is_quick: bool = False


received: list[Options] = []
app = typer.Typer()


@app.command()
@from_fields
def command(options: Options) -> None:
    """Read a file."""
    received.append(options)


def test_options_have_the_values_and_defaults_of_the_fields() -> None:
    words = ["a.txt", "-n", "x", "--name", "y", "--size", "9x11", "--is-quick", "--json"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, ["b.txt"], env={"NAMES": "z"}).exit_code == 0
    assert received[-2:] == [
        Options(file=Path("a.txt"), names=("x", "y"), size=(9, 11), is_quick=True, as_json=True),
        Options(file=Path("b.txt"), names=("z",)),
    ]


@pytest.mark.parametrize("wrong", [[], ["a", "--count", "0"], ["a", "--share", "0.4"]])
def test_missing_values_and_values_beyond_the_bounds_end_with_exit_code_2(wrong: list[str]) -> None:
    assert CliRunner().invoke(app, wrong).exit_code == 2


def test_help_has_docstrings_and_bounds_and_json_last() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.replace("│", "").split())
    for words in ("FILE", "What is read.", "How many of them are read.", "1<=x<=9", "x>=0.5"):
        assert words in text
    assert text.index("--count") < text.index("--is-quick") < text.index("--json")


def test_small_metrics_are_printed_with_significant_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = StringIO()
    record = {"time_s": 1.0, "epoch": 1, "val_negative_nmse": -0.00003217, "val_ssim": 0.91237}
    monkeypatch.setattr(progress, "console", lambda **_: Console(file=out, width=200))
    with training_progress(tmp_path, has_events=False) as on_step:
        on_step(Progress(1, 1, 1, 1, record))
    assert "validation SSIM 0.9124" in out.getvalue() and "-NMSE -3.217e-05" in out.getvalue()
