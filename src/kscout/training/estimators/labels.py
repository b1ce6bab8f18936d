"""Mean labels along a fixed order: gains, or what columns are worth at the end (`completion`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import start_mask
from kscout.policies.mean_gains import row_of
from kscout.training.augmentation import coarser_slices
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.starting import StartsFromGains, StartsFromManyGains

MOST_COARSER = 256
"""Slices on which mean gains of a coarser matrix are measured, unless more are asked for."""


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


def mean_labels(
    config: PolicyConfig, slices: SliceSet, reconstructor: Reconstructor, device: torch.device
) -> tuple[Float[Tensor, "step col"], Float[Tensor, " step"], list[int]]:
    """Return mean labels along a fixed order, their deviation over columns, and the order.

    They are not a number where a column is measured already.
    """
    training, (n_first, horizon) = dense_of(config), config.spanned
    start = n_first if training.starts else config.acquisition.start
    how = _scored_by(training)
    sizes: dict[str, Any] = {"n_initial": start, "horizon": horizon, "device": device}
    n_slices = training.n_prior_slices
    found = fit_fixed_order(slices, reconstructor, n_slices_per_step=n_slices, **sizes, **how)
    gains = found.gains.to(device)
    if training.completion != "none":
        mask = start_mask(start, (1, slices.n_cols), device)[0]
        some = slices.sample(training.n_prior_slices)
        completion = Completion.of(found.order, slices.n_cols, device)
        gains = mean_values(completion, some, reconstructor, mask, horizon, **how)
    units = torch.stack([row[~row.isnan()].std(correction=0) for row in gains])
    return gains, units.clamp(min=1e-8), found.order


@final
@dataclass(frozen=True)
class MeanGains:
    """Mean gains in units for policies to begin with, measured where one first asks for them.

    Those of slices as they are stored come from `mean_labels`. Slices that are made coarser cost
    less, so that there are more of them, the same at each step.
    """

    config: PolicyConfig
    slices: SliceSet
    reconstructor: Reconstructor
    device: torch.device
    units: Float[Tensor, " unit"]
    """Of labels, for each number of measured columns of slices as they are stored."""
    known: dict[tuple[int, int, int], Float[Tensor, "step col"]]
    """By columns of the matrix, those measured at first, and rows."""

    @classmethod
    def of(
        cls,
        config: PolicyConfig,
        slices: SliceSet,
        reconstructor: Reconstructor,
        gains: Float[Tensor, "step col"],
        units: Float[Tensor, " step"],
    ) -> "MeanGains":
        """Begin with mean labels of slices as they are stored, from the earliest start."""
        own = {(slices.n_cols, *config.spanned): carried_on(gains / units[:, None])}
        return cls(config, slices, reconstructor, gains.device, units, own)

    def give(self, policy: StartsFromGains) -> None:
        """Let a policy begin with them, those of each size and start where it can."""
        own = (self.slices.n_cols, *self.config.spanned)
        if not isinstance(policy, StartsFromManyGains):
            return policy.start_from(self.known[own])
        for one in policy.tables:
            # Of others it keeps what it knows.
            if one.n_cols in (self.slices.n_cols, *dense_of(self.config).sizes):
                key = (one.n_cols, one.n_first, one.n_rows)
                if key not in self.known:
                    self.known[key] = self._measured(*key)
                policy.start_from(self.known[key], one.n_cols, one.n_initial)
        return None

    def _measured(self, n_cols: int, n_first: int, n_rows: int) -> Float[Tensor, "step col"]:
        """Fit a fixed order to slices of so many columns."""
        training, slices = dense_of(self.config), self.slices
        n_each = training.n_prior_slices
        if n_cols != slices.n_cols:
            n_each = max(n_each, min(MOST_COARSER, n_each * slices.n_cols**2 // n_cols**2))
            slices = coarser_slices(slices.sample(n_each), n_cols)
        sizes: dict[str, Any] = {"n_initial": n_first, "horizon": n_rows, "device": self.device}
        how = {"n_slices_per_step": n_each, **_scored_by(training)}
        gains = fit_fixed_order(slices, self.reconstructor, **sizes, **how).gains.to(self.device)
        measured = torch.arange(n_first, n_first + n_rows, device=self.device)
        share = self.slices.n_cols / n_cols
        row = row_of(measured, self.config.spanned[0], len(self.units), share=share)
        return carried_on(gains / self.units[row, None])


def _scored_by(training: DenseTraining) -> dict[str, Any]:
    return {"protocol": training.protocol, "metric": training.metric}


def dense_of(config: PolicyConfig) -> DenseTraining:
    """Return the settings of a training by dense gains."""
    assert isinstance(config.training, DenseTraining)
    return config.training


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
