"""The training loop: steps, validation, records and checkpoints of every training."""

import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
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
    """Scores and counts of an epoch; both go into its line of metrics."""

    scores: Mapping[str, float]
    """Means over the epoch, e.g. `train_ssim`."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """Counts, e.g. `n_reconstructions`."""


class Course(ABC, Generic[ModuleT, ConfigT]):
    """One way to train a module, step by step.

    A subclass implements `take_step` and `end_epoch`. If more than weights is carried from step to
    step (a moving average, a replay buffer), it also implements `state` and `restore`; if the
    weights at validation are not the trained ones (but their moving average), `evaluated`. Sums
    over an epoch are added by `add`, because a checkpoint can be written after any step.

    Args:
        trainee: the module in training.
        n_slices: number of training slices.
    """

    n_steps: int
    """Steps of an epoch."""
    typical_epoch: int | None = None
    """The first epoch with the duration of later ones; None if all epochs and steps are alike."""

    def __init__(self, trainee: Trainee[ModuleT, ConfigT], n_slices: int) -> None:
        self.trainee, self.config = trainee, trainee.config
        self.n_steps = n_steps_of(n_slices, trainee.config.training.batch_size)
        self.sums: dict[str, Tensor] = {}
        """Sums over the steps of this epoch."""
        self.n_taken, self.is_between, self.saved_s = 0, True, time.monotonic()
        self.means: dict[str, Tensor] = {}
        """Means over the batch of the last step, for display."""

    def begin_epoch(self, epoch: int) -> None:
        """Draw the random numbers of an epoch, counted from 1."""

    @abstractmethod
    def take_step(self, epoch: int, step: int) -> None:
        """Take one step, counted from 0."""

    @abstractmethod
    def end_epoch(self, epoch: int) -> EpochResult:
        """Return the result of an epoch, from its sums."""

    def n_steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch."""
        return self.n_steps

    def add(self, **values: Tensor) -> None:
        """Add to the sums over this epoch."""
        for name, value in values.items():
            known = self.sums.get(name)
            self.sums[name] = value.clone() if known is None else known + value

    def train_epoch(self, epoch: int, on_step: OnStep) -> EpochResult:
        """Take the steps of an epoch that are left.

        Args:
            epoch: counted from 1.
            on_step: called after each step.
        """
        training, n_steps = self.config.training, self.n_steps_in(epoch)
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
        part, device = self.trainee.part, next(self.trainee.module.parameters()).device
        self.n_taken = part.get("step", 0)
        if part.get("n_steps", n_steps) != n_steps:
            raise RunError(
                f"the checkpoint was saved inside an epoch of {part['n_steps']} steps, and here "
                f"it has {n_steps}; resume on the kind of device that it was saved on"
            )
        self.sums = {name: value.to(device) for name, value in part.get("sums", {}).items()}

    def save_part(self, epoch: int) -> None:
        """Write a checkpoint inside an epoch, with one process and between two steps."""
        is_new = self.n_taken > self.trainee.part.get("step", 0)
        if not (is_new and self.is_between) or n_processes() > 1:
            return
        sums = {name: value.cpu() for name, value in self.sums.items()}
        part = {"step": self.n_taken, "n_steps": self.n_steps_in(epoch), "sums": sums}
        with deferred_signals():
            self.trainee.keep_part(part, self.state())
        self.saved_s = time.monotonic()

    def evaluated(self) -> ModuleT:
        """Return the module with the weights to validate and to write."""
        return self.trainee.module

    def is_validated_first(self) -> bool:
        """Return whether the module is validated before its first epoch, as it is no random one."""
        return self.trainee.start is not None

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, for its record."""
        return self.trainee.rate(epoch)

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint besides module and optimizer."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the content of `state`; it is empty at the beginning of a training."""


CourseT = TypeVar("CourseT", bound=Course[Any, Any])


def train_epochs(
    course: CourseT,
    validate: Callable[[CourseT], Mapping[str, float]],
    *,
    picture: Callable[[CourseT], Tensor],
    device: torch.device,
    on_step: OnStep,
) -> None:
    """Train to the last epoch and close the run.

    SIGINT and SIGTERM take effect between two steps, where a checkpoint is written.

    Args:
        course: how a module trains that is not finished.
        validate: means over held-out slices, `val_ssim` among them; the first selects the best
            epoch.
        picture: an image of the progress, which `on_step` may show after an epoch.
        device: device of the training.
        on_step: called after each step, and with the epoch's record after each epoch.
    """
    trainee = course.trainee
    try:
        if not trainee.is_over:
            course.restore(trainee.carried)
            if not trainee.n_done and not trainee.part and course.is_validated_first():
                scores = validate(course)
                trainee.note(**{f"{key}_at_start": value for key, value in scores.items()})
        on_epoch = _shown(on_step, partial(picture, course))
        while not trainee.is_over:
            _train_epoch(course, trainee.n_done + 1, validate, device=device, on_step=on_epoch)
    except (KeyboardInterrupt, SystemExit):
        trainee.log_position()
        raise
    trainee.finish()


def _shown(on_step: OnStep, picture: Callable[[], Tensor]) -> OnStep:
    """Return a callback that receives a picture with the record of an epoch."""
    return lambda progress: on_step(
        replace(progress, picture=picture) if progress.record else progress
    )


def _train_epoch(
    course: CourseT,
    epoch: int,
    validate: Callable[[CourseT], Mapping[str, float]],
    *,
    device: torch.device,
    on_step: OnStep,
) -> None:
    """Train, validate and write one epoch; save the steps so far if it is interrupted."""
    trainee, begun = course.trainee, time.perf_counter()
    try:
        result = course.train_epoch(epoch, on_step)
        _check_finite(epoch, trainee, result)
        scores = validate(course)
    except (KeyboardInterrupt, SystemExit):
        course.save_part(epoch)
        raise
    record = {
        "epoch": epoch,
        **result.scores,
        **scores,
        "learning_rate": course.rate(epoch),
        "time_s": round(time.perf_counter() - begun, 3),
        "peak_memory_bytes": peak_memory(device),
        **result.facts,
    }
    with deferred_signals():
        trainee.keep(record, next(iter(scores.values())), course.evaluated(), course.state())
        course.saved_s = time.monotonic()
    n_steps, n_epochs = course.n_steps, trainee.config.training.n_epochs
    on_step(Progress(epoch, n_epochs, n_steps, n_steps, record, course.typical_epoch))


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
    """Return the optimizer steps of an epoch; a batch smaller than the processes is an error."""
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
    """Open a new or resumed run folder in the main process; others get None.

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
    """Raise an error if a new run keeps epochs beyond its last one."""
    training = config.training
    never = [epoch for epoch in training.keep_epochs if not 1 <= epoch <= training.n_epochs]
    # By default the paper's epochs are kept, of those that a shorter training has.
    is_asked = training.keep_epochs != type(training).keep_epochs
    if never and is_asked and not (out / CONFIG).exists():
        raise ConfigError(
            f"training.keep_epochs names {', '.join(map(str, never))}, and training.n_epochs is "
            f"{training.n_epochs}; name epochs from 1 to {training.n_epochs}"
        )


def fixed_convolution(run: Run | None, wanted: str, device: torch.device, *, trains: bool) -> str:
    """Return the recorded convolution backend of a run, or choose and record one.

    Args:
        run: the run; None in other processes than the main one.
        wanted: a backend's name, or `auto`.
        device: device of the training.
        trains: whether a reconstructor is trained.
    """
    name = ""
    if is_main():
        recorded = {} if run is None else run.provenance.notes
        name = recorded.get("convolution") or choose_convolution(wanted, device, trains=trains)
        if run is not None and "convolution" not in recorded:
            run.note(convolution=name)
    return from_main(name)


def _check_finite(epoch: int, trainee: Trainee[Any, Any], result: EpochResult) -> None:
    training = trainee.config.training
    advice = f"lower training.learning_rate (now {training.learning_rate})"
    for name, value in result.scores.items():
        if not math.isfinite(value):
            raise RunError(f"{name} of epoch {epoch} is {value}; {advice} and name another --out")
    # Scores that are not numbers draw columns on CUDA all the same; weights show them later.
    if not torch.stack([p.isfinite().all() for p in trainee.module.parameters()]).all():
        raise RunError(
            f"the weights of epoch {epoch} are not finite; {advice}, or see that the outputs "
            "and their gradients are finite"
        )
