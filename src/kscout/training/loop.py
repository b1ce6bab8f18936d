"""The training loop: steps, validation, records and checkpoints of every training."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from kscout.assemble import seeded_globals
from kscout.config import Config
from kscout.device import describe_device, peak_memory
from kscout.errors import ConfigError, RunError
from kscout.runs import CONFIG, Progress, Record, Run
from kscout.training.algorithm import Algorithm, EpochResult
from kscout.training.convolution import choose_convolution
from kscout.training.distributed import from_main, is_main, n_processes, rank
from kscout.training.training_run import TrainingRun

OnStep = Callable[[Progress], None]

SAVE_EVERY_S = 180.0
"""Time between checkpoints inside an epoch."""


AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm[Any, Any])


def train_epochs(
    algorithm: AlgorithmT,
    training_run: TrainingRun[Any, Any],
    validate: Callable[[AlgorithmT], Mapping[str, float]],
    *,
    picture: Callable[[AlgorithmT], Tensor],
    on_step: OnStep,
) -> None:
    """Train to the last epoch and close the run.

    SIGINT and SIGTERM take effect between two steps, where a checkpoint is written.

    Args:
        algorithm: how the module is trained.
        training_run: what is written, and what was written before an interruption.
        validate: means over held-out slices, `val_ssim` among them; the first selects the best
            epoch.
        picture: an image of the progress, which `on_step` may show after an epoch.
        on_step: called after each step, and with the epoch's record after each epoch.
    """
    loop = TrainingLoop(algorithm, training_run, on_step)
    try:
        if not training_run.is_over:
            algorithm.restore(training_run.carried)
            if training_run.is_new and algorithm.is_validated_first():
                scores = validate(algorithm)
                training_run.note(**{f"{key}_at_start": value for key, value in scores.items()})
        while not training_run.is_over:
            record = loop.train_epoch(partial(validate, algorithm))
            n_steps, n_epochs = algorithm.n_steps, algorithm.config.training.n_epochs
            where = (training_run.n_done, n_epochs, n_steps, n_steps, record)
            shown = partial(picture, algorithm)
            on_step(Progress(*where, picture=shown))
    except (KeyboardInterrupt, SystemExit):
        training_run.log_position()
        raise
    training_run.finish()


@final
class TrainingLoop:
    """Takes the steps of an algorithm, and writes records and checkpoints."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        training_run: TrainingRun[Any, Any],
        on_step: OnStep = lambda _: None,
    ) -> None:
        self.algorithm, self.training_run, self.on_step = algorithm, training_run, on_step
        self.n_taken, self.is_between, self.saved_s = 0, True, time.monotonic()
        self.device = next(algorithm.learner.module.parameters()).device

    def train_epoch(self, validate: Callable[[], Mapping[str, float]]) -> Record:
        """Train, validate and write one epoch; save the steps so far if it is interrupted."""
        algorithm, training_run, begun = self.algorithm, self.training_run, time.perf_counter()
        epoch = training_run.n_done + 1
        try:
            result = self.take_steps(epoch)
            _check_finite(epoch, algorithm, result)
            scores = validate()
        except (KeyboardInterrupt, SystemExit):
            self._save_part(epoch)
            raise
        record = {
            "epoch": epoch,
            **result.scores,
            **scores,
            "learning_rate": algorithm.rate(epoch),
            "time_s": round(time.perf_counter() - begun, 3),
            "peak_memory_bytes": peak_memory(self.device),
            **result.facts,
        }
        with deferred_signals():
            score = next(iter(scores.values()))
            training_run.keep(record, score, algorithm.evaluated(), algorithm.state())
            self.saved_s = time.monotonic()
        return record

    def take_steps(self, epoch: int) -> EpochResult:
        """Take the steps of an epoch that are left, counted from 1."""
        algorithm = self.algorithm
        training, n_steps = algorithm.config.training, algorithm.n_steps_in(epoch)
        self._resume(n_steps)
        algorithm.begin_epoch(epoch)
        for step in range(self.n_taken, n_steps):
            with deferred_signals(), seeded_globals(training.seed, "dropout", epoch, step, rank()):
                self.is_between = False
                algorithm.take_step(epoch, step)
                self.n_taken, self.is_between = step + 1, True
            where = (epoch, training.n_epochs, step + 1, algorithm.n_steps)
            self.on_step(Progress(*where, means=algorithm.means))
            if time.monotonic() - self.saved_s > SAVE_EVERY_S:
                self._save_part(epoch)
        return algorithm.end_epoch(epoch)

    def _resume(self, n_steps: int) -> None:
        part, device = self.training_run.part, self.device
        self.n_taken = part.get("step", 0)
        if part.get("n_steps", n_steps) != n_steps:
            raise RunError(
                f"the checkpoint was saved inside an epoch of {part['n_steps']} steps, and here "
                f"it has {n_steps}; resume on the kind of device that it was saved on"
            )
        sums = {name: value.to(device) for name, value in part.get("sums", {}).items()}
        self.algorithm.sums = sums

    def _save_part(self, epoch: int) -> None:
        """Write a checkpoint inside an epoch, with one process and between two steps."""
        training_run, algorithm = self.training_run, self.algorithm
        is_new = self.n_taken > training_run.part.get("step", 0)
        if not (is_new and self.is_between) or n_processes() > 1:
            return
        sums = {name: value.cpu() for name, value in algorithm.sums.items()}
        part = {"step": self.n_taken, "n_steps": algorithm.n_steps_in(epoch), "sums": sums}
        with deferred_signals():
            training_run.keep_part(part, algorithm.state())
        self.saved_s = time.monotonic()


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


@contextmanager
def opened_run(
    out: str | Path,
    config: Config,
    inputs: Mapping[str, str],
    device: torch.device,
    *,
    note: str | None = None,
) -> Iterator[Run | None]:
    """Open a new or resumed run folder in the main process; others get None."""
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
    """Return the recorded convolution backend of a run, or choose and record one."""
    name = ""
    if is_main():
        recorded = {} if run is None else run.provenance.notes
        name = recorded.get("convolution") or choose_convolution(wanted, device, trains=trains)
        if run is not None and "convolution" not in recorded:
            run.note(convolution=name)
    return from_main(name)


def _check_finite(epoch: int, algorithm: Algorithm[Any, Any], result: EpochResult) -> None:
    training = algorithm.config.training
    advice = f"lower training.learning_rate (now {training.learning_rate})"
    for name, value in result.scores.items():
        if not math.isfinite(value):
            raise RunError(f"{name} of epoch {epoch} is {value}; {advice} and name another --out")
    # Scores that are not numbers draw columns on CUDA all the same; weights show them later.
    if not torch.stack([p.isfinite().all() for p in algorithm.learner.module.parameters()]).all():
        raise RunError(
            f"the weights of epoch {epoch} are not finite; {advice}, or see that the outputs "
            "and their gradients are finite"
        )
