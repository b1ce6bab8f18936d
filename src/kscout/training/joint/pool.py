"""Masks that a reconstruction learns from: all moments of the newest acquisitions.

The pool parts both kinds of learning: however long an acquisition takes, an update of the
reconstruction finds masks, and the number of updates depends on nothing but the settings.
"""

from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.data.slices import SliceSet


@final
class MaskPool:
    """Slices by number, as they are or mirrored, with their masks from the start to the budget.

    The oldest leave first.

    Args:
        slices: what is acquired.
        n_moments: masks of one acquisition.
        n_most: acquisitions that it holds.
    """

    def __init__(self, slices: SliceSet, n_moments: int, n_most: int) -> None:
        self.slices, self.n_most = slices, n_most
        self.index = torch.empty(0, dtype=torch.int64, device=slices.index_device)
        self.is_mirrored = torch.empty(0, dtype=torch.bool, device=slices.device)
        shape = (0, n_moments, slices.n_cols)
        self.masks = torch.empty(shape, dtype=torch.bool, device=slices.device)

    def __len__(self) -> int:
        return len(self.index)

    def clear(self) -> None:
        """Forget all."""
        self.index, self.masks = self.index[:0], self.masks[:0]
        self.is_mirrored = self.is_mirrored[:0]

    def add(
        self,
        index: Int[Tensor, " slice"],
        is_mirrored: Bool[Tensor, " slice"],
        masks: Bool[Tensor, "slice moment col"],
    ) -> None:
        """Take new acquisitions in."""
        self.index = torch.cat([self.index, index.to(self.index.device)])[-self.n_most :]
        self.is_mirrored = torch.cat([self.is_mirrored, is_mirrored])[-self.n_most :]
        self.masks = torch.cat([self.masks, masks])[-self.n_most :]

    def draw(
        self, uniforms: Float[Tensor, "batch 2"]
    ) -> tuple[Int[Tensor, " batch"], Bool[Tensor, " batch"], Bool[Tensor, "batch col"]]:
        """Draw slices and, for each, whether it was mirrored, and the mask of one moment.

        Args:
            uniforms: numbers in [0, 1), where slices are numbered, that decide which.
        """
        entry, moment = ((uniforms[:, i] * n).long() for i, n in enumerate(self.masks.shape[:2]))
        index, entry, moment = (
            self.index[entry],
            *(x.to(self.masks.device) for x in (entry, moment)),
        )
        return index, self.is_mirrored[entry], self.masks[entry, moment]

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must hold."""
        mirrored = {"is_mirrored": self.is_mirrored.cpu()}
        return {"index": self.index.cpu(), **mirrored, "masks": self.masks.cpu()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.clear()
        masks = state["masks"].to(self.masks.device)
        # A checkpoint of an older kscout tells of none.
        known = state.get("is_mirrored", torch.zeros(len(masks), dtype=torch.bool))
        self.add(state["index"], known.to(masks.device), masks)
