"""Signal-to-noise ratio of gradient estimates: norm(mean gradient) / norm(std of the mean).

The mean is over the batches of one pass through the data. Its variance is, with B batches,

| formula | variance of the mean |
|---|---|
| `paper` | sum of squared deviations / (B (B - 1)) |
| `reference` | sum of squared deviations / B^2, as the authors' program computes it |
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.errors import ConfigError, RunError, unknown_name
from kscout.evaluation.progress import OnStep, Step
from kscout.files import parse_json, read_text, write_text

FORMULAS = ("paper", "reference")
N_PASSES, N_TRAJECTORIES, BATCH_SIZE = 3, 16, 16
"""The paper's setting: passes over the training data, q, slices per batch."""


@final
class GradientMoments:
    """Mean and spread of gradients, one at a time: memory does not grow with their number."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None

    def add(self, gradient: Float[Tensor, "..."]) -> None:
        """Take in the gradient of one more batch (Welford's update)."""
        value = gradient.detach().double()
        self.count += 1
        if self.mean is None or self.squares is None:
            self.mean, self.squares = value.clone(), torch.zeros_like(value)
            return
        deviation = value - self.mean
        self.mean = self.mean + deviation / self.count
        self.squares = self.squares + deviation * (value - self.mean)

    def signal_to_noise(self, formula: str = "paper") -> float:
        """Return the ratio for all gradients added."""
        if formula not in FORMULAS:
            raise unknown_name("formula", formula, list(FORMULAS))
        if self.count < 2 or self.mean is None or self.squares is None:
            raise ConfigError(
                f"{self.count} batch{'' if self.count == 1 else 'es'} of gradients; their spread "
                "needs at least 2: lower the batch size or give more slices"
            )
        divisor = self.count * (self.count - 1) if formula == "paper" else self.count**2
        noise = (self.squares.sum() / divisor).sqrt()
        return float(self.mean.norm() / noise)


def signal_to_noise(
    gradients: Float[Tensor, "pass batch ..."], formula: str = "paper"
) -> tuple[float, float]:
    """Return mean and std (ddof 1, nan for one pass) over passes of the ratio in each pass."""
    ratios = []
    for one_pass in gradients:
        moments = GradientMoments()
        for gradient in one_pass:
            moments.add(gradient)
        ratios.append(moments.signal_to_noise(formula))
    return _mean_and_std(ratios)


def _mean_and_std(values: list[float]) -> tuple[float, float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) if len(values) > 1 else math.nan


@final
@dataclass(frozen=True)
class PassRecord:
    """One finished pass over the data with one checkpoint: a line of the record file."""

    epoch: int
    pass_index: int
    n_batches: int
    n_values: int
    """Entries of the gradient."""
    paper: float
    reference: float
    setting: str
    """What the numbers depend on besides epoch and pass; other settings are not reused."""


BatchGradient = Callable[[Any, int], Tensor]
"""Gradient of one batch in one pass, flat: `batch_gradient(batch, pass_index)`. The pass keys the
draws, so that passes differ and a resumed analysis equals an uninterrupted one."""


def measure_passes(
    epoch: int,
    batches: Callable[[int], Iterable[Any]],
    batch_gradient: BatchGradient,
    *,
    record: Path,
    setting: str = "",
    n_passes: int = N_PASSES,
    on_step: OnStep | None = None,
) -> list[PassRecord]:
    """Measure the ratio of one checkpoint in several passes, going on where `record` ends.

    Args:
        epoch: the checkpoint's epoch.
        batches: yields the batches of a pass, given its index.
        batch_gradient: see `BatchGradient`.
        record: file of one JSON line per finished epoch and pass; lines are added to it.
        setting: names what else the numbers depend on.
        n_passes: passes over the data.
        on_step: called before and after each pass.

    Returns:
        Exactly `n_passes` records, each of a pass of its own.
    """
    tell = on_step or (lambda _: None)
    finished = {
        (line.epoch, line.pass_index): line
        for line in read_passes(record)
        if line.setting == setting
    }
    for pass_index in range(n_passes):
        if (epoch, pass_index) in finished:
            continue
        moments, n_values = GradientMoments(), 0
        what = f"epoch {epoch}, pass {pass_index + 1}"
        tell(Step(what, 0, 1))
        for batch in batches(pass_index):
            gradient = batch_gradient(batch, pass_index)
            n_values = gradient.numel()
            moments.add(gradient)
        line = PassRecord(
            epoch=epoch,
            pass_index=pass_index,
            n_batches=moments.count,
            n_values=n_values,
            paper=moments.signal_to_noise("paper"),
            reference=moments.signal_to_noise("reference"),
            setting=setting,
        )
        finished[epoch, pass_index] = line
        _append(record, line)
        tell(Step(what, 1, 1))
    return [finished[epoch, pass_index] for pass_index in range(n_passes)]


def read_passes(record: Path) -> list[PassRecord]:
    """Read the finished passes; a last line cut short by a crash is left out."""
    if not record.exists():
        return []
    lines = read_text(record).split("\n")
    try:
        # What follows the last line feed was never finished.
        return [_finished_pass(parse_json(line)) for line in lines[:-1] if line]
    except (ValueError, TypeError) as error:
        raise RunError(
            f"{record} is not a record of gradient passes ({error}); remove it to start again"
        ) from error


def _finished_pass(table: dict[str, Any]) -> PassRecord:
    found = PassRecord(**table)
    for item in fields(PassRecord):
        kinds = (int, float) if item.type is float else (item.type,)
        if type(value := getattr(found, item.name)) not in kinds:
            raise TypeError(f"{item.name} is {value!r}")
    return found


def _append(record: Path, line: PassRecord) -> None:
    # Rewritten whole: the file is small, and a killed process leaves no half line.
    kept = read_passes(record)
    write_text(record, "".join(json.dumps(asdict(one)) + "\n" for one in [*kept, line]))


@final
@dataclass(frozen=True)
class EpochNoise:
    """The ratio at one checkpoint by both formulas: mean and std (ddof 1) over its passes."""

    epoch: int
    n_passes: int
    n_batches: int
    snr_paper: float
    std_paper: float | None
    snr_reference: float
    std_reference: float | None


def noise_table(records: list[PassRecord]) -> list[EpochNoise]:
    """Return what the passes of each epoch say together."""
    rows = []
    for epoch in sorted({line.epoch for line in records}):
        lines = [line for line in records if line.epoch == epoch]
        ratios: list[float | None] = []
        for formula in FORMULAS:
            mean, std = _mean_and_std([getattr(line, formula) for line in lines])
            ratios += [mean, None if math.isnan(std) else std]
        rows.append(EpochNoise(epoch, len(lines), lines[0].n_batches, *ratios))  # type: ignore[arg-type]
    return rows
