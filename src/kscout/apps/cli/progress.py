"""Progress of long work: bars on a terminal, lines elsewhere, and event files for TensorBoard."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, final

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


class ShowProgress(Protocol):
    """Shows the progress of a task."""

    def __call__(self, title: str, done: int, total: int | None, words: str = "") -> None: ...


def is_first_process() -> bool:
    """Return whether this process prints: under torchrun only the first one does."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def drawn_bars(place: Console) -> Iterator[ShowProgress]:
    """Yield a function that draws one bar per task on a terminal."""
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

        def show(title: str, done: int, total: int | None, words: str = "") -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total, words=words)
            bar.update(tasks[title], completed=done, total=total, words=words)

        yield show


@contextmanager
def training_progress(out: Path, has_events: bool) -> Iterator[OnStep]:
    """Yield an `on_step` callback that shows the progress of a training."""
    if not is_first_process():
        yield lambda _: None
        return
    place = console(stderr=True)
    show = _bar(place) if place.is_terminal else nullcontext(TrainingLines(place).show)
    folder, is_trained = out / "tensorboard" if has_events else None, False
    with show as draw, closing(Events(folder)) as events:

        def on_step(progress: Progress) -> None:
            nonlocal is_trained
            is_trained = True
            draw(progress)
            events.write(progress)

        yield on_step
    if not is_trained:
        place.print("finished before, unchanged; use another --out to train again", soft_wrap=True)


@contextmanager
def task_progress() -> Iterator[Callable[[Step], None]]:
    """Yield a callback that draws a bar on a terminal, or prints lines with the time left."""
    place = console(stderr=True)
    if not place.is_terminal:
        yield _Lines(place).show
        return
    with drawn_bars(place) as show:
        yield lambda step: show(step.what, step.done, step.total)


@final
class _Lines:
    """Prints the progress of a task in intervals, and its end."""

    def __init__(
        self, place: Console, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.place, self.every_s, self.clock = place, every_s, clock
        self.what, self.begun_s, self.printed_s, self.last_s = "", clock(), clock(), clock()

    def show(self, step: Step) -> None:
        """Print the finished and the total number of steps."""
        now = self.clock()
        if step.what != self.what:
            # Its first part is finished: it started when the previous task ended.
            self.what, self.begun_s = step.what, self.last_s
        self.last_s = now
        if step.done == step.total:
            self.place.print(f"{step.what}: done", soft_wrap=True)
        elif step.done and now - self.printed_s >= self.every_s:
            left_min = (now - self.begun_s) / 60 * (step.total - step.done) / step.done
            line = f"{step.what}: {step.done} of {step.total}, {left_min:.1f} min left"
            self.place.print(line, soft_wrap=True)
        else:
            return
        self.printed_s = now


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


@contextmanager
def _bar(place: Console) -> Iterator[OnStep]:
    with drawn_bars(place) as show:
        facts = ""

        def draw(progress: Progress) -> None:
            nonlocal facts
            if progress.record:
                facts = _facts(progress.record)
            done = (progress.epoch - 1) * progress.n_steps + progress.step
            words = f"epoch {progress.epoch}/{progress.n_epochs}  {facts}"
            show("", done, progress.n_epochs * progress.n_steps, words)

        yield draw


@final
class TrainingLines:
    """Prints the progress of a training: lines in intervals, and one after each epoch.

    The first update of an epoch is not timed, because it may include one-time work.
    """

    def __init__(
        self, place: Console, every_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.place, self.every_s, self.clock = place, every_s, clock
        self.printed_s, self.epoch, self.first_step, self.first_s = clock(), 0, 0, 0.0
        self.epoch_s: float | None = None
        """Seconds of the last complete epoch with the duration of later ones."""
        self.is_new = True

    def show(self, progress: Progress) -> None:
        """Print an update or an epoch."""
        if progress.record:
            self._print_epoch(progress)
            return
        now = self.clock()
        # Several seeds are trained one after the other.
        if progress.epoch != self.epoch or progress.step <= self.first_step:
            self.epoch, self.first_step, self.first_s = progress.epoch, progress.step, now
        n_counted = progress.step - self.first_step
        if not n_counted or progress.step == progress.n_steps:
            return
        each_s = (now - self.first_s) / n_counted
        # The estimate comes first if a training takes more than a minute.
        is_first = self.is_new and each_s * progress.n_steps * progress.n_epochs > 60
        self.is_new = False
        if is_first or now - self.printed_s >= self.every_s:
            left = self._left(progress, each_s)
            epoch = f"updates of epoch {progress.epoch}/{progress.n_epochs}"
            line = f"{epoch}: {progress.step} of {progress.n_steps}{left}"
            self.place.print(line, soft_wrap=True)
            self.printed_s = now

    def _left(self, progress: Progress, each_s: float) -> str:
        """Return the time left as text, if known, from the duration of an update."""
        n_left, n_after = progress.n_steps - progress.step, progress.n_epochs - progress.epoch
        if progress.typical_epoch is None:
            return f", {each_s * (n_left + n_after * progress.n_steps) / 60:.1f} min left"
        # Some updates take much longer than others, so a few of them predict a lower bound only.
        if progress.epoch < progress.typical_epoch or progress.step * 8 < progress.n_steps:
            least_min = each_s * (n_left + n_after * progress.n_steps) / 60
            return f", at least {least_min:.1f} min left"
        if n_after and self.epoch_s is None:
            return f", {each_s * n_left / 60:.1f} min left of this epoch"
        return f", {(each_s * n_left + n_after * (self.epoch_s or 0)) / 60:.1f} min left"

    def _print_epoch(self, progress: Progress) -> None:
        time_s, n_after = progress.record["time_s"], progress.n_epochs - progress.epoch
        left = ""
        if progress.epoch >= (progress.typical_epoch or 0) or not n_after:
            self.epoch_s, left = time_s, f", {n_after * time_s / 60:.1f} min left"
        words = f"epoch {progress.epoch}/{progress.n_epochs}  {_facts(progress.record)}"
        self.place.print(f"{words}  {time_s:.1f} s{left}", soft_wrap=True)


def _facts(record: JsonObject) -> str:
    kinds = {"train": "training", "search": "searched", "val": "validation"}
    names = {f"{k}_{m}": f"{kinds[k]} {_METRICS[m]}" for k in kinds for m in _METRICS}
    names = {"train_loss": "loss", **names}
    scores = [f"{word} {decimals(record[key])}" for key, word in names.items() if key in record]
    return "  ".join(scores)


PICTURE = "target, reconstruction, error and columns"
UPDATES = "updates"
"""Folder for means per update. After an interruption, events from a step on are replaced, and steps
of epochs and of updates differ."""


@final
class Events:
    """Writes the progress of a training.

    Without a folder nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._writers: dict[Path, Any] = {}
        if folder is not None:
            _writer_class()

    def write(self, progress: Progress) -> None:
        """Write the means of an update, or the record and the picture of an epoch."""
        if self.folder is None:
            return
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
            self._writers[folder] = _writer_class()(str(folder), purge_step=step)
        return self._writers[folder]


def _writer_class() -> Any:  # noqa: ANN401 - of a package without types
    with needs_extra("--tensorboard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter
