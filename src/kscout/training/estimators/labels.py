"""Mean labels along a fixed order: gains, or what columns are worth at the end (`completion`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet

GAINS = "ssim"
"""What labels are called that are the gains in SSIM of the next column."""


@torch.no_grad()
def mean_values(
    completion: Completion,
    slices: SliceSet,
    reconstructor: Reconstructor,
    start: Bool[Tensor, " col"],
    horizon: int,
    **how: str,
) -> Float[Tensor, "step col"]:
    """Return mean values along the order; not a number where a column is measured already.

    Args:
        completion: by the order.
        slices: over which the mean is taken.
        reconstructor: frozen.
        start: columns measured before the first step.
        horizon: steps, of which the last has one column left.
        how: protocol and metric of the simulator.
    """
    values = torch.full((horizon, slices.n_cols), torch.nan, device=start.device)
    for step, mask in enumerate(_prefixes(completion, start, horizon)):
        columns, total = (~mask).nonzero()[:, 0], torch.zeros(int((~mask).sum()))
        total = total.to(start.device)
        for batch in slices.batches(16):
            simulator = Simulator(batch.to(start.device), reconstructor, **how)  # type: ignore[arg-type]
            maps = simulator.calibrate(start.expand(len(batch), -1))
            state = simulator.start_from(mask.expand(len(batch), -1), maps=maps)
            left = torch.full((len(batch),), horizon - step, device=start.device)
            wanted = columns.expand(len(batch), -1)
            total += completion.values(simulator, state, wanted, left).sum(dim=0)
        values[step, columns] = total / len(slices)
    return values


def _prefixes(
    completion: Completion, start: Bool[Tensor, " col"], horizon: int
) -> Iterator[Bool[Tensor, " col"]]:
    """Yield the masks along the order, before each of its columns."""
    for step in range(horizon):
        taken = torch.zeros_like(start)
        taken[completion.ranked[:step]] = True
        yield start | taken


@final
@dataclass(frozen=True)
class MeanLabels:
    """Mean labels along a fixed order."""

    labels: Float[Tensor, "step col"]
    """Before each of its columns; not a number where a column is measured already."""
    order: list[int]

    @property
    def units(self) -> Float[Tensor, " step"]:
        """Return their deviation over columns."""
        units = [row[~row.isnan()].std(correction=0) for row in self.labels]
        return torch.stack(units).clamp(min=1e-8)


def dense_of(config: PolicyConfig) -> DenseTraining:
    """Return the settings of a training by dense gains."""
    assert isinstance(config.training, DenseTraining)
    return config.training


def learned_from(start: Policy | None) -> str:
    """Return what the labels of a trained policy were; nothing where that is not known."""
    if start is None:
        return ""
    return start.labels or (GAINS if start.gain_units else "")


def carried_on(gains: Float[Tensor, "step col"]) -> Float[Tensor, "step col"]:
    """Fill in what a column is worth where the order has measured it, and a policy may not have.

    It is worth what it was before, in the units that gains are given in, and no less than the best
    that is left, as it was the best before that. Columns that were measured from the start are
    worth as much as any, for a policy that starts from fewer.
    """
    filled: list[Tensor] = []
    for row in gains:
        best = row.nan_to_num(-torch.inf).amax()
        before = torch.maximum(filled[-1], best) if filled else best
        filled.append(torch.where(row.isnan(), before, row))
    return torch.stack(filled)
