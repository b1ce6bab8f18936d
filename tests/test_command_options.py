"""Commands whose options are generated from a dataclass."""

import re
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from kscout.apps.cli.options import AsJson, from_fields
from kscout.apps.cli.progress import TrainingLines
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


N_EPOCHS, N_STEPS = 4, 40


def told(
    firsts_s: list[float], *, each_s: float = 4.0, typical_epoch: int | None = None, first: int = 1
) -> list[tuple[str, float]]:
    """Return the lines of a training, each with the minutes that were left when it was told.

    Args:
        firsts_s: how long the first update takes, by epoch.
        each_s: how long the others do.
        typical_epoch: what the training says of its epochs.
        first: the epoch that it goes on with.
    """
    now, out, found = 0.0, StringIO(), []
    lines = TrainingLines(Console(file=out, width=200), clock=lambda: now)
    epochs = range(first, N_EPOCHS + 1)
    whole_s = {epoch: firsts_s[epoch - 1] + (N_STEPS - 1) * each_s for epoch in epochs}
    for epoch in epochs:
        for step in range(1, N_STEPS + 2):
            record = {"time_s": whole_s[epoch]} if step > N_STEPS else {}
            now += 0 if record else firsts_s[epoch - 1] if step == 1 else each_s
            done = min(step, N_STEPS)
            lines.show(Progress(epoch, N_EPOCHS, done, N_STEPS, record, typical_epoch))
            if new := out.getvalue()[sum(len(line) for line, _ in found) :]:
                found.append((new, (sum(whole_s.values()) - now) / 60))
    return found


def minutes(line: str) -> float | None:
    """Return the minutes that a line says are left in all."""
    match = re.search(r"(?<!at least )(?<![\d.])([\d.]+) min left$", line.strip())
    return None if match is None else float(match[1])


def test_the_first_update_of_an_epoch_is_not_taken_for_all_others() -> None:
    found = told([100.0, 4.0, 4.0, 4.0])
    assert minutes(found[0][0]) is not None
    for line, left in found[1:]:
        assert (promised := minutes(line)) is not None
        # Each record repeats its own epoch's time.
        if not line.startswith("epoch 1/"):
            assert abs(promised - left) < 0.1, line


def test_what_is_done_once_an_epoch_is_counted_once_an_epoch() -> None:
    found = told([4.0, 300.0, 300.0, 300.0], typical_epoch=2)
    early = [line for line, _ in found if re.match(r"(updates of )?epoch 1/", line)]
    assert len(early) > 2 and all("at least " in line for line in early[:-1])
    second = [line for line, _ in found if line.startswith("updates of epoch 2/")]
    assert any(line.strip().endswith("min left of this epoch") for line in second)
    promises = [(minutes(line), left) for line, left in found]
    assert sum(promised is not None for promised, _ in promises) > 8
    assert all(abs(promised - left) < 0.1 for promised, left in promises if promised is not None)


def test_a_training_that_goes_on_tells_all_of_it_after_a_whole_epoch() -> None:
    found = told([4.0, 300.0, 300.0, 300.0], typical_epoch=2, first=3)
    assert found[0][0].startswith("updates of epoch 3/4") and ", at least " in found[0][0]
    promises = [(minutes(line), left) for line, left in found]
    assert all(abs(promised - left) < 0.1 for promised, left in promises if promised is not None)
    assert minutes(next(line for line, _ in found if line.startswith("epoch 3/"))) is not None


def test_small_metrics_are_printed_with_significant_digits() -> None:
    out = StringIO()
    record = {"time_s": 1.0, "epoch": 1, "val_negative_nmse": -0.00003217, "val_ssim": 0.91237}
    TrainingLines(Console(file=out, width=200)).show(Progress(1, 1, 1, 1, record))
    assert "validation SSIM 0.9124" in out.getvalue() and "-NMSE -3.217e-05" in out.getvalue()
