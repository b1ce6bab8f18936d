"""Mean labels along a fixed order: gains, or what columns are worth at the end (`completion`)."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator
from kscout.columns import span_of
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import start_mask
from kscout.policies.mean_gains import row_of
from kscout.training.augmentation import coarser_slices
from kscout.training.fixed_order import fit_fixed_order

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


def gains_from(
    config: PolicyConfig,
    slices: SliceSet,
    reconstructor: Reconstructor,
    device: torch.device,
    n_cols: int,
    n_initial: int,
    units: Float[Tensor, " unit"],
) -> Float[Tensor, "step col"]:
    """Return mean gains along a fixed order from some start, in units, for a policy to begin with.

    Slices may be made coarser. The same shares of columns are then measured as of slices as they
    are. Smaller images cost less, so that there are more of them.

    Args:
        config: of the training.
        slices: as they are stored.
        reconstructor: frozen.
        device: where the work is done.
        n_cols: columns of the coarser ones.
        n_initial: columns of slices as they are stored that are as many as the start.
        units: of labels, for each number of measured columns of slices as they are stored.
    """
    training, (n_first, horizon) = dense_of(config), config.spanned
    span = (n_initial, n_first + horizon - n_initial)
    first, n_steps = span_of(*span, n_cols, slices.n_cols)
    known = training.n_prior_slices
    n_slices = max(known, min(MOST_COARSER, known * slices.n_cols**2 // n_cols**2))
    some = coarser_slices(slices.sample(n_slices), n_cols)
    sizes: dict[str, Any] = {"n_initial": first, "horizon": n_steps, "device": device}
    found = fit_fixed_order(some, reconstructor, **sizes, **_scored_by(training))
    measured = torch.arange(first, first + n_steps, device=device)
    row = row_of(measured, n_first, len(units), share=slices.n_cols / n_cols)
    return carried_on(found.gains.to(device) / units[row, None])


def _scored_by(training: DenseTraining) -> dict[str, Any]:
    return {"protocol": training.protocol, "metric": training.metric}


def dense_of(config: PolicyConfig) -> DenseTraining:
    """Return the settings of a training by dense gains."""
    assert isinstance(config.training, DenseTraining)
    return config.training


def carried_on(gains: Float[Tensor, "step col"]) -> Float[Tensor, "step col"]:
    """Fill in what a column is worth where the order has measured it, and a policy may not have.

    It is worth what it was before: in the units of its step, as gains fall fast at first. Columns
    that were measured from the start are worth as much as any, for a policy that starts from fewer.
    """
    filled = [torch.where(gains[0].isnan(), gains[0].nan_to_num(-torch.inf).amax(), gains[0])]
    for row in gains[1:]:
        filled.append(torch.where(row.isnan(), filled[-1], row))
    return torch.stack(filled)
