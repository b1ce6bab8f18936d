"""A pool of masks for training a reconstruction: all steps of the newest acquisitions.

The pool parts both kinds of learning: however long an acquisition takes, an update of the
reconstruction finds masks, and the number of updates depends on nothing but the settings.
"""

from typing import final

from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.data.slices import SliceSet
from kscout.json_types import StateDict
from kscout.training.states import Memory


@final
class MaskPool:
    """Numbers of slices, their augmentation, and their masks from the start to the budget.

    The oldest leave first.
    """

    def __init__(self, slices: SliceSet, n_most: int) -> None:
        self.slices, self.memory = slices, Memory(n_most)

    def __len__(self) -> int:
        return len(self.memory)

    def clear(self) -> None:
        """Remove all entries."""
        self.memory.rows = {}

    def add(
        self,
        index: Int[Tensor, " slice"],
        numbers: Float[Tensor, "slice number"],
        masks: Bool[Tensor, "slice moment col"],
    ) -> None:
        """Add acquisitions, with the random numbers of their augmentation."""
        index = index.to(self.slices.index_device)
        self.memory.add({"index": index, "numbers": numbers, "masks": masks})

    def draw(
        self, uniforms: Float[Tensor, "batch 2"]
    ) -> tuple[Int[Tensor, " batch"], Float[Tensor, "batch number"], Bool[Tensor, "batch col"]]:
        """Sample slices, each with its augmentation and the mask of one step."""
        index, numbers, masks = (self.memory.rows[x] for x in ("index", "numbers", "masks"))
        entry, moment = ((uniforms[:, i] * n).long() for i, n in enumerate(masks.shape[:2]))
        here, at = (x.to(masks.device) for x in (entry, moment))
        return index[entry], numbers[here], masks[here, at]

    def state(self) -> StateDict:
        """Return the content of a checkpoint."""
        return {name: value.cpu() for name, value in self.memory.rows.items()}

    def restore(self, state: StateDict) -> None:
        """Restore the content of `state`."""
        self.clear()
        masks = state["masks"].to(self.slices.device)
        self.add(state["index"], state["numbers"].to(masks.device), masks)
