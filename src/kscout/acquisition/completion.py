"""What a column is worth at the end: its score when a fixed order takes the columns that are left.

The gain of the next column alone misleads where a column pays off later. With k columns left to
acquire and F_k(M) the first k columns of a fixed order that a mask M lacks, column a is worth

    v(a) = score(M + a + F_{k-1}(M + a)) - score(M + F_k(M)),

one reconstruction, as its gain is. A policy that takes the column of the highest value ends no
worse than the fixed order, slice by slice: the order's own next columns are worth 0.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.columns import whole_order
from kscout.physics.sampling import acquire


@final
@dataclass(frozen=True)
class Completion:
    """A fixed order that takes what is left, the same for all states or one for each."""

    ranked: Int[Tensor, "*state col"]
    """All columns, those of the order first."""

    @classmethod
    def of(cls, order: list[int], n_cols: int, device: torch.device) -> "Completion":
        """Return the completion by an order; columns that it lacks follow from the center."""
        return cls(torch.tensor(whole_order(n_cols, order), device=device))

    def rows(self, which: Int[Tensor, " n"]) -> "Completion":
        """Return that of each of some states, which have orders of these."""
        return Completion(self.ranked[which])

    def masks(
        self,
        mask: Bool[Tensor, "*lead col"],
        n_left: Int[Tensor, "*lead"],
        selectable: Bool[Tensor, "*lead col"],
    ) -> Bool[Tensor, "*lead col"]:
        """Return masks with so many further columns of the order."""
        n_more = mask.ndim - self.ranked.ndim
        ranked = self.ranked[(..., *n_more * (None,), slice(None))].expand(mask.shape)
        is_free = (selectable & ~mask).gather(-1, ranked)
        is_taken = is_free & (is_free.cumsum(dim=-1) <= n_left[..., None])
        return mask | torch.zeros_like(mask).scatter(-1, ranked, is_taken)

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
        # A column that the order takes anyway is worth 0, however its reconstruction was rounded.
        is_same = (ends[1] == ends[0]).all(dim=-1)
        return (scores[:, 1:] - scores[:, :1]).masked_fill(is_same, 0.0)


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
