"""Epoch by epoch: train, validate, write. One loop for everything that is trained."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import torch

from kscout.config import Config
from kscout.device import describe_device, peak_memory
from kscout.errors import ConfigError, RunError
from kscout.runs import CONFIG, Progress, Run
from kscout.training.convolution import choose_convolution
from kscout.training.distributed import from_main, is_main, n_processes
from kscout.training.trainee import ConfigT, ModuleT, Trainee

OnStep = Callable[[Progress], None]


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

    A new one implements `train_epoch`. One that carries more than weights from epoch to epoch (a
    running mean, a replay memory) also gives `state` and `restore`, and one whose weights at
    validation are not those that it trains (their moving average) gives `evaluated`.

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

    @abstractmethod
    def train_epoch(self, epoch: int, on_step: OnStep) -> list[EpochResult]:
        """Train for one epoch; return what it gave for each trainee.

        Args:
            epoch: counted from 1.
            on_step: to be called after each optimizer step.
        """

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
    device: torch.device,
    on_step: OnStep,
) -> None:
    """Train to the last epoch and close the runs.

    Args:
        trainees: those that are not finished.
        make_course: how such trainees learn together.
        validate: means over held-out slices of one trainee of a course, `val_ssim` among them; the
            first decides which epoch is best.
        device: where they learn.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    n_epochs = trainees[0].config.training.n_epochs
    course: CourseT | None = None
    for epoch in range(min(trainee.n_done for trainee in trainees) + 1, n_epochs + 1):
        # A kill may have left some an epoch behind: those catch up first.
        active = [x for x in trainees if x.n_done < epoch and not x.is_over]
        if not active:
            continue
        if course is None or [*map(id, course.trainees)] != [*map(id, active)]:
            course = make_course(active)
            for number, trainee in enumerate(active):
                course.restore(number, trainee.carried)
                if not trainee.n_done and course.begins_able(number):
                    found = validate(course, number)
                    trainee.note(**{f"{key}_at_start": value for key, value in found.items()})
        begun = time.perf_counter()
        results = course.train_epoch(epoch, on_step)
        _check_finite(epoch, active, results)
        scores = [validate(course, number) for number in range(len(active))]
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
        for number, (trainee, record) in enumerate(zip(active, records, strict=True)):
            first = next(iter(scores[number].values()))
            trainee.keep(record, first, course.evaluated(number), course.state(number))
        n_steps, typical = course.n_steps, course.typical_epoch
        on_step(Progress(epoch, n_epochs, n_steps, n_steps, records[0], typical))
    for trainee in trainees:
        trainee.finish()


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
