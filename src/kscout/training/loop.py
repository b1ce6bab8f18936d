"""Epoch by epoch: train, validate, write. One loop for everything that is trained."""

import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from kscout.assemble import seeded_globals
from kscout.config import Config
from kscout.device import describe_device, peak_memory
from kscout.errors import ConfigError, RunError
from kscout.runs import CONFIG, Progress, Run
from kscout.training.convolution import choose_convolution
from kscout.training.distributed import from_main, is_main, n_processes, rank
from kscout.training.trainee import ConfigT, ModuleT, Trainee

OnStep = Callable[[Progress], None]

SAVE_EVERY_S = 180.0
"""Time between checkpoints inside an epoch."""


@final
@dataclass(frozen=True)
class EpochResult:
    """What an epoch gave for one trainee; both parts go into its line of metrics."""

    scores: Mapping[str, float]
    """Means over the epoch, e.g. `train_ssim`."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """Counts, e.g. `n_reconstructions`."""


class Course(ABC, Generic[ModuleT, ConfigT]):
    """How trainees are taken through an epoch.

    A new one implements `take_step` and `end_epoch`. One that carries more than weights from step
    to step (a running mean, a replay buffer) also gives `state` and `restore`, and one whose
    weights at validation are not those that it trains (their moving average) gives `evaluated`.
    Sums over an epoch are added by `add`, because a checkpoint can be written after any step.

    Args:
        trainees: what learns; several differ in settings that leave their batches alike.
        n_slices: of the training data.
    """

    n_steps: int
    """Optimizer steps of an epoch."""
    typical_epoch: int | None = None
    """The first epoch that takes as long as those after it; None where all do, and all steps."""

    def __init__(self, trainees: Sequence[Trainee[ModuleT, ConfigT]], n_slices: int) -> None:
        self.trainees = trainees
        self.n_steps = n_steps_of(n_slices, trainees[0].config.training.batch_size)
        self.sums: list[dict[str, Tensor]] = [{} for _ in trainees]
        """Sums of each trainee over the steps of this epoch."""
        self.n_taken, self.is_between, self.saved_s = 0, True, time.monotonic()
        self.means: dict[str, Tensor] = {}
        """Means of the first trainee over the batch of the last step, to be shown."""

    def begin_epoch(self, epoch: int) -> None:
        """Make the draws of an epoch, counted from 1."""

    @abstractmethod
    def take_step(self, epoch: int, step: int) -> None:
        """Take one step of all trainees, counted from 0."""

    @abstractmethod
    def end_epoch(self, epoch: int) -> list[EpochResult]:
        """Return the results of an epoch for each trainee, from its sums."""

    def n_steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch."""
        return self.n_steps

    def add(self, number: int, **values: Tensor) -> None:
        """Add to the sums of a trainee over this epoch."""
        sums = self.sums[number]
        for name, value in values.items():
            sums[name] = sums[name] + value if name in sums else value.clone()

    def train_epoch(self, epoch: int, on_step: OnStep) -> list[EpochResult]:
        """Take the steps of an epoch that are left; return the results for each trainee.

        Args:
            epoch: counted from 1.
            on_step: called after each optimizer step.
        """
        training, n_steps = self.trainees[0].config.training, self.n_steps_in(epoch)
        self._resume(n_steps)
        self.begin_epoch(epoch)
        for step in range(self.n_taken, n_steps):
            with deferred_signals(), seeded_globals(training.seed, "dropout", epoch, step, rank()):
                self.is_between = False
                self.take_step(epoch, step)
                self.n_taken, self.is_between = step + 1, True
            where = (epoch, training.n_epochs, step + 1, self.n_steps)
            on_step(Progress(*where, typical_epoch=self.typical_epoch, means=self.means))
            if time.monotonic() - self.saved_s > SAVE_EVERY_S:
                self.save_part(epoch)
        return self.end_epoch(epoch)

    def _resume(self, n_steps: int) -> None:
        """Restore the steps and sums of an epoch that was saved in part."""
        parts, device = [x.part for x in self.trainees], next(self.trainees[0].module.parameters())
        self.n_taken = parts[0].get("step", 0)
        if parts[0].get("n_steps", n_steps) != n_steps:
            raise RunError(
                f"the checkpoint was saved inside an epoch of {parts[0]['n_steps']} steps, and here"
                f" it has {n_steps}; resume on the kind of device that it was saved on"
            )
        self.sums = [{x: y.to(device.device) for x, y in p.get("sums", {}).items()} for p in parts]

    def save_part(self, epoch: int) -> None:
        """Write checkpoints inside an epoch, with one process and between two steps."""
        is_new = self.n_taken > self.trainees[-1].part.get("step", 0)
        if not (is_new and self.is_between) or n_processes() > 1:
            return
        for number, trainee in enumerate(self.trainees):
            sums = {name: value.cpu() for name, value in self.sums[number].items()}
            part = {"step": self.n_taken, "n_steps": self.n_steps_in(epoch), "sums": sums}
            trainee.keep_part(part, self.state(number))
        self.saved_s = time.monotonic()

    def evaluated(self, number: int) -> ModuleT:
        """Return a trainee's module with the weights to validate and to write."""
        return self.trainees[number].module

    def begins_able(self, number: int) -> bool:
        """Return whether a trainee chooses well before its first epoch, which is then validated."""
        return self.trainees[number].start is not None

    def rate(self, number: int, epoch: int) -> float:
        """Return a trainee's step size in an epoch, for its record."""
        return self.trainees[number].rate(epoch)

    def state(self, number: int) -> dict[str, Any]:
        """Return what a trainee's checkpoint must hold besides module and optimizer."""
        return {}

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Take back what `state` gave, so that training goes on alike; empty at the beginning."""


CourseT = TypeVar("CourseT", bound=Course[Any, Any])


def train_epochs(
    trainees: Sequence[Trainee[Any, Any]],
    make_course: Callable[[Sequence[Trainee[Any, Any]]], CourseT],
    validate: Callable[[CourseT, int], Mapping[str, float]],
    *,
    picture: Callable[[CourseT], Tensor],
    device: torch.device,
    on_step: OnStep,
) -> None:
    """Train to the last epoch and close the runs.

    SIGINT and SIGTERM take effect between two steps, where a checkpoint is written.

    Args:
        trainees: those that are not finished.
        make_course: how such trainees learn together.
        validate: means over held-out slices of one trainee of a course, `val_ssim` among them; the
            first decides which epoch is best.
        picture: what `on_step` may show of the first trainee of a course after an epoch.
        device: where they learn.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    n_epochs = trainees[0].config.training.n_epochs
    course: CourseT | None = None
    try:
        for epoch in range(min(trainee.n_done for trainee in trainees) + 1, n_epochs + 1):
            for active in _alike([x for x in trainees if x.n_done < epoch and not x.is_over]):
                if course is None or [*map(id, course.trainees)] != [*map(id, active)]:
                    course = make_course(active)
                    _begin(course, validate)
                on_epoch = _shown(on_step, partial(picture, course))
                _train_epoch(course, epoch, validate, device=device, on_step=on_epoch)
    except (KeyboardInterrupt, SystemExit):
        for trainee in trainees:
            trainee.log_position()
        raise
    for trainee in trainees:
        trainee.finish()


def _shown(on_step: OnStep, picture: Callable[[], Tensor]) -> OnStep:
    """Return a callback that receives a picture with the record of an epoch."""
    return lambda told: on_step(replace(told, picture=picture) if told.record else told)


def _alike(trainees: Sequence[Trainee[Any, Any]]) -> list[list[Trainee[Any, Any]]]:
    """Group trainees by their step in the epoch: a kill may have left some behind others."""
    steps = [trainee.part.get("step", 0) for trainee in trainees]
    groups = [[x for x, own in zip(trainees, steps, strict=True) if own == n] for n in {*steps}]
    return sorted(groups, key=lambda group: group[0].part.get("step", 0))


def _begin(course: CourseT, validate: Callable[[CourseT, int], Mapping[str, float]]) -> None:
    """Restore what trainees carry; validate those that choose well before their first epoch."""
    for number, trainee in enumerate(course.trainees):
        course.restore(number, trainee.carried)
        if not trainee.n_done and not trainee.part and course.begins_able(number):
            scores = validate(course, number)
            trainee.note(**{f"{key}_at_start": value for key, value in scores.items()})


def _train_epoch(
    course: CourseT,
    epoch: int,
    validate: Callable[[CourseT, int], Mapping[str, float]],
    *,
    device: torch.device,
    on_step: OnStep,
) -> None:
    """Train, validate and write one epoch; save the steps so far if it is interrupted."""
    active, begun = course.trainees, time.perf_counter()
    try:
        results = course.train_epoch(epoch, on_step)
        _check_finite(epoch, active, results)
        scores = [validate(course, number) for number in range(len(active))]
    except (KeyboardInterrupt, SystemExit):
        course.save_part(epoch)
        raise
    shared = {
        "time_s": round(time.perf_counter() - begun, 3),
        "n_lockstep": len(active),
        "peak_memory_bytes": peak_memory(device),
    }
    records = [
        {
            "epoch": epoch,
            **result.scores,
            **score,
            "learning_rate": course.rate(number, epoch),
            **shared,
            **result.facts,
        }
        for number, (result, score) in enumerate(zip(results, scores, strict=True))
    ]
    with deferred_signals():
        for number, (trainee, record) in enumerate(zip(active, records, strict=True)):
            first = next(iter(scores[number].values()))
            trainee.keep(record, first, course.evaluated(number), course.state(number))
        course.saved_s = time.monotonic()
    n_steps, n_epochs = course.n_steps, active[0].config.training.n_epochs
    on_step(Progress(epoch, n_epochs, n_steps, n_steps, records[0], course.typical_epoch))


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Delay the first SIGINT or SIGTERM to the end of the block; a second one takes effect at once.

    Signals reach the main thread alone, and several processes must not stop at different steps.
    """
    if threading.current_thread() is not threading.main_thread() or n_processes() > 1:
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {x: handler for x in numbers if (handler := signal.getsignal(x)) is not None}
    received: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def delay(number: int, _: object) -> None:
        received.append(number)
        restore()

    try:
        for number in before:
            signal.signal(number, delay)
        yield
    finally:
        restore()
    if received:
        signal.raise_signal(received[0])


def n_steps_of(n_slices: int, batch_size: int) -> int:
    """Return the optimizer steps of an epoch; refuse batches that leave a process without work."""
    if batch_size < n_processes():
        raise ConfigError(
            f"a batch of {batch_size} cannot be shared by {n_processes()} processes; "
            "raise training.batch_size or start fewer"
        )
    return math.ceil(n_slices / batch_size)


@contextmanager
def opened_run(
    out: str | Path,
    config: Config,
    inputs: Mapping[str, str],
    device: torch.device,
    *,
    note: str | None = None,
) -> Iterator[Run | None]:
    """Open a run folder, new or to go on with, in the main process; others get None.

    Args:
        out: the folder.
        config: settings.
        inputs: fingerprints by name of what it reads.
        device: what it runs on.
        note: a sentence about the protocol, which the run records.
    """
    if not is_main():
        yield None
        return
    _check_kept(config, Path(out))
    words = describe_device(device, n_processes())
    with Run.create_or_resume(out, config, inputs=inputs, device=words) as run:
        if note is not None and not run.is_finished:
            run.note(protocol=note)
        try:
            yield run
        except ConfigError:
            run.discard()
            raise


def _check_kept(config: Config, out: Path) -> None:
    """Refuse a new run that is asked to keep epochs which never come."""
    training = config.training
    never = [epoch for epoch in training.keep_epochs if not 1 <= epoch <= training.n_epochs]
    # By default the paper's epochs are kept, of those that a shorter training has.
    is_asked = training.keep_epochs != type(training).keep_epochs
    if never and is_asked and not (out / CONFIG).exists():
        raise ConfigError(
            f"training.keep_epochs names {', '.join(map(str, never))}, and training.n_epochs is "
            f"{training.n_epochs}; name epochs from 1 to {training.n_epochs}"
        )


def fixed_convolution(
    runs: Sequence[Run], wanted: str, device: torch.device, *, trains: bool
) -> str:
    """Return the convolution backend of runs: the recorded one, else the wanted one, recorded now.

    Args:
        runs: those of the main process; no others have any.
        wanted: a backend's name, or `auto`.
        device: what it will run on.
        trains: whether a reconstructor is trained.
    """
    name = ""
    if is_main():
        noted = [
            run.provenance.notes["convolution"]
            for run in runs
            if "convolution" in run.provenance.notes
        ]
        name = noted[0] if noted else choose_convolution(wanted, device, trains=trains)
        for run in runs:
            if "convolution" not in run.provenance.notes:
                run.note(convolution=name)
    return from_main(name)


def _check_finite(
    epoch: int, trainees: Sequence[Trainee[Any, Any]], results: Sequence[EpochResult]
) -> None:
    for trainee, result in zip(trainees, results, strict=True):
        training = trainee.config.training
        advice = f"lower training.learning_rate (now {training.learning_rate})"
        for name, value in result.scores.items():
            if not math.isfinite(value):
                raise RunError(
                    f"{name} of epoch {epoch} is {value}; {advice} and name another --out"
                )
        # Scores that are not numbers draw columns on CUDA all the same; weights show them later.
        if not torch.stack([p.isfinite().all() for p in trainee.module.parameters()]).all():
            raise RunError(
                f"the weights of epoch {epoch} are not finite; {advice}, or see that the outputs "
                "and their gradients are finite"
            )
