"""What a column is worth at the end: its score when a fixed order takes the columns that are left.

The gain of the next column alone misleads where a column pays off later. With k columns left to
acquire and F_k(M) the first k columns of a fixed order that a mask M lacks, column a is worth

    v(a) = score(M + a + F_{k-1}(M + a)) - score(M + F_k(M)),

one reconstruction, as its gain is. A policy that takes the column of the highest value ends no
worse than the fixed order, slice by slice: the order's own next columns are worth 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import acquire, start_mask
from kscout.training.fixed_order import fit_fixed_order


@final
@dataclass(frozen=True)
class Completion:
    """A fixed order that takes what is left."""

    ranked: Int[Tensor, " col"]
    """All columns, those of the order first."""

    @classmethod
    def of(cls, order: list[int], n_cols: int, device: torch.device) -> "Completion":
        """Return the completion by an order; columns that it lacks come last, lowest first."""
        rest = sorted(set(range(n_cols)) - set(order))
        return cls(torch.tensor([*order, *rest], device=device))

    def masks(
        self,
        mask: Bool[Tensor, "*lead col"],
        n_left: Int[Tensor, "*lead"],
        selectable: Bool[Tensor, "*lead col"],
    ) -> Bool[Tensor, "*lead col"]:
        """Return masks with so many further columns of the order."""
        is_free = (selectable & ~mask)[..., self.ranked]
        is_taken = is_free & (is_free.cumsum(dim=-1) <= n_left[..., None])
        return mask | torch.zeros_like(mask).index_copy(-1, self.ranked, is_taken)

    def values(
        self,
        simulator: Simulator,
        state: State,
        columns: Int[Tensor, "state candidate"],
        n_left: Int[Tensor, " state"],
    ) -> Float[Tensor, "state candidate"]:
        """Return v of candidate columns, which are not measured yet."""
        selectable = simulator.batch.selectable[state.owner][:, None]
        after = acquire(state.mask[:, None].expand(-1, columns.shape[1], -1), columns)
        selectable_after = selectable.expand(after.shape)
        ends = [
            self.masks(state.mask[:, None], n_left[:, None], selectable),
            self.masks(after, (n_left[:, None] - 1).expand(columns.shape), selectable_after),
        ]
        scores = _scores(simulator, torch.cat(ends, dim=1), state)
        return scores[:, 1:] - scores[:, :1]


def _scores(
    simulator: Simulator, masks: Bool[Tensor, "state end col"], state: State
) -> Float[Tensor, "state end"]:
    """Reconstruct and score each mask with its state's sensitivities, as many at once as fit."""
    flat, found = masks.flatten(0, 1), []
    parent = torch.arange(len(masks), device=masks.device).repeat_interleave(masks.shape[1])
    for mask, own in zip(
        flat.split(simulator.n_at_once), parent.split(simulator.n_at_once), strict=True
    ):
        maps = None if state.maps is None else state.maps[own]
        found.append(simulator.start_from(mask, owner=state.owner[own], maps=maps).score)
    return torch.cat(found).view(masks.shape[:2])


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
    """Return mean labels along a fixed order, their deviation over columns, and the order."""
    training, (n_first, horizon) = config.training, config.spanned
    assert isinstance(training, DenseTraining)
    start = n_first if training.starts else config.acquisition.start
    found = fit_fixed_order(
        slices,
        reconstructor,
        n_initial=start,
        horizon=horizon,
        n_slices_per_step=training.n_prior_slices,
        protocol=training.protocol,
        metric=training.metric,
        device=device,
    )
    gains = found.gains.to(device)
    if training.completion != "none":
        mask = start_mask(start, (1, slices.n_cols), device)[0]
        how = {"protocol": training.protocol, "metric": training.metric}
        some = slices.sample(training.n_prior_slices)
        completion = Completion.of(found.order, slices.n_cols, device)
        gains = mean_values(completion, some, reconstructor, mask, horizon, **how)
    units = torch.stack([row[~row.isnan()].std(correction=0) for row in gains])
    return carried_on(gains), units.clamp(min=1e-8), found.order


def carried_on(gains: Float[Tensor, "step col"]) -> Float[Tensor, "step col"]:
    """Fill in what a column is worth where the order has measured it, and a policy may not have.

    It is worth what it was before. Columns that were measured from the start are worth as much as
    any, for a policy that starts from fewer.
    """
    filled = [torch.where(gains[0].isnan(), gains[0].nan_to_num(-torch.inf).amax(), gains[0])]
    for row in gains[1:]:
        filled.append(torch.where(row.isnan(), filled[-1], row))
    return torch.stack(filled)
