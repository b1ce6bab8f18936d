"""Masks that a reconstruction learns from: all moments of the newest acquisitions.

The pool parts both kinds of learning: however long an acquisition takes, an update of the
reconstruction finds masks, and the number of updates depends on nothing but the settings.
"""

from typing import Any, final

from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.data.slices import SliceSet
from kscout.training.replay import Memory


@final
class MaskPool:
    """Slices by number, how each was varied, and its masks from the start to the budget.

    The oldest leave first.
    """

    def __init__(self, slices: SliceSet, n_most: int) -> None:
        self.slices, self.memory = slices, Memory(n_most)

    def __len__(self) -> int:
        return len(self.memory)

    def clear(self) -> None:
        """Forget all."""
        self.memory.rows = {}

    def add(
        self,
        index: Int[Tensor, " slice"],
        numbers: Float[Tensor, "slice number"],
        masks: Bool[Tensor, "slice moment col"],
    ) -> None:
        """Take new acquisitions in, with the numbers that slices were varied by."""
        index = index.to(self.slices.index_device)
        self.memory.add({"index": index, "numbers": numbers, "masks": masks})

    def draw(
        self, uniforms: Float[Tensor, "batch 2"]
    ) -> tuple[Int[Tensor, " batch"], Float[Tensor, "batch number"], Bool[Tensor, "batch col"]]:
        """Draw slices and, for each, what it was varied by, and the mask of one moment.

        Args:
            uniforms: numbers in [0, 1), where slices are numbered, that decide which.
        """
        index, numbers, masks = (self.memory.rows[x] for x in ("index", "numbers", "masks"))
        entry, moment = ((uniforms[:, i] * n).long() for i, n in enumerate(masks.shape[:2]))
        here, at = (x.to(masks.device) for x in (entry, moment))
        return index[entry], numbers[here], masks[here, at]

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint must hold."""
        return {name: value.cpu() for name, value in self.memory.rows.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.clear()
        masks = state["masks"].to(self.slices.device)
        self.add(state["index"], state["numbers"].to(masks.device), masks)
