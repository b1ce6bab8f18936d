"""Labelled states that a policy learns from again.

What a column gains at a state does not depend on who looks, and to try many columns costs far more
than to learn from what came out. A state is remembered as its slice and its mask, so that a memory
is small, and to see it again costs one image.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.training.estimators.visited import Rows

KEPT = ("index", "uniforms", "mask", "step", "n_left", "columns", "gains", "is_valid")
"""Slice and how it was varied, what was measured, what was tried and what came out."""


def kept_of(steps: Sequence[Rows]) -> Rows:
    """Return what is remembered of the states of all steps, in their order."""
    return {name: torch.cat([rows[name] for rows in steps]) for name in KEPT}


@final
class Remembered:
    """The newest labelled states of one policy, oldest first.

    Args:
        n_most: how many.
    """

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.rows: Rows = {}

    def __len__(self) -> int:
        return len(self.rows["index"]) if self.rows else 0

    def add(self, new: Rows) -> None:
        """Take states in, and let the oldest of too many go."""
        old = self.rows or {name: value[:0] for name, value in new.items()}
        self.rows = {name: torch.cat([old[name], new[name]])[-self.n_most :] for name in KEPT}

    def draw(self, uniforms: Float[Tensor, " state"]) -> Rows:
        """Return some states, with replacement, by numbers in [0, 1)."""
        which = (uniforms * len(self)).long()
        return {name: value[which] for name, value in self.rows.items()}
