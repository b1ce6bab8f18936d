"""Progress of long work: bars on a terminal, lines elsewhere, and event files for TensorBoard."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from kscout.apps.cli.console import console
from kscout.errors import needs_extra
from kscout.evaluation.progress import Step
from kscout.figures.tables import decimals
from kscout.json_types import JsonObject
from kscout.names import metric_word
from kscout.runs import CONFIG, Progress, RunRecord

OnStep = Callable[[Progress], None]

_METRICS = {"ssim": "SSIM", "psnr": "PSNR", "negative_nmse": "-NMSE", "score": "score"}
"""Names of metrics in lines, by their names in records."""

Show = Callable[[str, int, int, str], None]
"""Shows how much of a task is done: its title, the finished and all parts, and news if any."""


def is_first_process() -> bool:
    """Return whether this process prints: under torchrun only the first one does."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def _shown() -> Iterator[Show]:
    """Yield a function that draws one bar per task on a terminal, and prints lines elsewhere."""
    place = console(stderr=True)
    if not place.is_terminal:
        yield Lines(place).show
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left", markup=False),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=place) as bar:
        tasks: dict[str, TaskID] = {}

        def draw(title: str, done: int, total: int, words: str) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total, words="")
            bar.update(tasks[title], completed=done, total=total)
            if words:
                bar.update(tasks[title], words=words)

        yield draw


@final
class Lines:
    """Prints how much of a task is done, in intervals and at its end, or instead words at once.

    The first part is not timed, because it may include one-time work.
    """

    def __init__(
        self, place: Console, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.place, self.every_s, self.clock = place, every_s, clock
        self.title, self.done, self.printed_s = "", 0, clock()

    def show(self, title: str, done: int, total: int, words: str = "") -> None:
        """Print the finished and the total number of parts, with the time left."""
        now = self.clock()
        # Several seeds are trained one after the other.
        if title != self.title or done < self.done:
            self.title, self.first, self.first_s = title, done, now
        self.done = done
        if not (words or done == total or now - self.printed_s >= self.every_s):
            return
        line = words or f"{title}: {'done' if done == total else f'{done} of {total}'}"
        if self.first < done < total:
            left_s = (now - self.first_s) * (total - done) / (done - self.first)
            line += f", {left_s / 60:.1f} min left"
        self.place.print(line, soft_wrap=True)
        self.printed_s = now


@contextmanager
def training_progress(out: Path, has_events: bool) -> Iterator[OnStep]:
    """Yield an `on_step` callback that shows the progress of a training."""
    if not is_first_process():
        yield lambda _: None
        return
    place = console(stderr=True)
    is_trained = False
    opened = closing(Events(out / "tensorboard")) if has_events else nullcontext()
    with _shown() as show, opened as events:

        def on_step(progress: Progress) -> None:
            nonlocal is_trained
            is_trained = True
            epoch = f"epoch {progress.epoch}/{progress.n_epochs}"
            words = f"{epoch}  {_facts(progress.record)}" if progress.record else ""
            done = (progress.epoch - 1) * progress.n_steps + progress.step
            show("updates", done, progress.n_epochs * progress.n_steps, words)
            if events is not None:
                events.write(progress)

        yield on_step
    if not is_trained:
        place.print("finished before, unchanged; use another --out to train again", soft_wrap=True)


@contextmanager
def task_progress() -> Iterator[Callable[[Step], None]]:
    """Yield a callback that shows the progress of the parts of an evaluation or an analysis."""
    with _shown() as show:
        yield lambda step: show(step.what, step.done, step.total, "")


def print_runs(runs: Sequence[RunRecord], *, as_json: bool) -> None:
    """Print the result of each training in one line."""
    for run in runs if is_first_process() else []:
        protocol = run.config["training"]["protocol"]
        answer = {"run": str(run.path), "protocol": protocol, **run.metrics[-1], **(run.done or {})}
        notes = run.provenance.notes.items()
        answer |= {key: value for key, value in notes if key.startswith("val_")}
        if as_json:
            typer.echo(json.dumps(answer))
            continue
        last = _score_text(run, answer, "val_")
        best = _score_text(run, answer, "best_val_").removeprefix("SSIM ")
        console().print(
            f"{run.path}: validation {last} after epoch {answer['epoch']}, best {best} after epoch "
            f"{answer['best_epoch']} (protocol {protocol}){_evaluated(run, answer)}"
            f"{_start_text(run, answer)}{run.zero_filled_text}",
            soft_wrap=True,
        )


def _evaluated(run: RunRecord, answer: JsonObject) -> str:
    if answer["epoch"] == answer["best_epoch"] or run.config["training"].get("patience"):
        return ""
    return f"; {run.path} stands for the last epoch, {run.path}@best for the best"


def _metric_of(run: RunRecord) -> str:
    """Return the metric that selects the best epoch of a run."""
    return run.config["training"].get("metric", "ssim")


def _score_text(run: RunRecord, answer: JsonObject, prefix: str) -> str:
    """Return a validation score as text: the training's metric, and SSIM if that is another."""
    metric, ssim = _metric_of(run), f"SSIM {answer[f'{prefix}ssim']:.4f}"
    if metric == "ssim":
        return ssim
    word = metric_word(metric)
    value = answer.get(f"{prefix}{word}")
    number = f" {decimals(value)}" if isinstance(value, float) else ""
    return f"{metric if word == 'score' else _METRICS[word]}{number} ({ssim})"


def _start_text(run: RunRecord, answer: JsonObject) -> str:
    """Return a text on the validation before the first epoch, with a warning if it was better."""
    word = metric_word(_metric_of(run))
    begun = answer.get(f"val_{word}_at_start")
    if begun is None:
        return ""
    had_start = "start" in run.provenance.inputs
    better = "use the start" if had_start else "the fixed order at its start is no worse"
    is_worse = answer[f"best_val_{word}"] <= begun
    warning = f", so training has not improved it: {better}" if is_worse else ""
    return f"; it started at {decimals(begun)}{warning}"


def _facts(record: JsonObject) -> str:
    kinds = {"train": "training", "search": "searched", "val": "validation"}
    names = {f"{k}_{m}": f"{kinds[k]} {_METRICS[m]}" for k in kinds for m in _METRICS}
    names = {"train_loss": "loss", **names}
    scores = [f"{word} {decimals(record[key])}" for key, word in names.items() if key in record]
    return "  ".join([*scores, f"{record['time_s']:.1f} s"])


PICTURE = "target, reconstruction, error and columns"
UPDATES = "updates"
"""Folder for means per update. After an interruption, events from a step on are replaced, and steps
of epochs and of updates differ."""


@final
class Events:
    """Writes the progress of a training."""

    def __init__(self, folder: Path) -> None:
        with needs_extra("--tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self.folder, self._make = folder, SummaryWriter
        self._writers: dict[Path, Any] = {}

    def write(self, progress: Progress) -> None:
        """Write the means of an update, or the record and the picture of an epoch."""
        # Opened late, because a run rejects a folder with other content.
        if not self._writers:
            self._write_settings(self.folder, progress.epoch)
        number = (progress.epoch - 1) * progress.n_steps + progress.step
        for name, mean in progress.means.items():
            self._opened(self.folder / UPDATES, number).add_scalar(name, float(mean), number)
        if not progress.record:
            return
        writer = self._opened(self.folder, progress.epoch)
        for name, value in progress.record.items():
            if name != "epoch" and isinstance(value, int | float):
                writer.add_scalar(name, value, progress.epoch)
        if progress.picture is not None:
            shown = progress.picture().cpu()
            writer.add_image(PICTURE, shown, progress.epoch, dataformats="HW")

    def close(self) -> None:
        """Write what is buffered."""
        for writer in self._writers.values():
            writer.close()

    def _write_settings(self, folder: Path, step: int) -> None:
        run, writer = folder.parent, self._opened(folder, step)
        for config in [*run.glob(CONFIG), *sorted(run.glob(f"*/{CONFIG}"))]:
            text = f"```toml\n{config.read_text(encoding='utf-8')}```"
            writer.add_text(config.parent.name, text)

    def _opened(self, folder: Path, step: int) -> Any:  # noqa: ANN401 - a SummaryWriter
        if folder not in self._writers:
            self._writers[folder] = self._make(str(folder), purge_step=step)
        return self._writers[folder]
