"""A replay buffer: the newest rows of tensors by name."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

Rows = dict[str, Tensor]
"""Tensors by name with one row for each remembered thing: a state, a decision, an acquisition."""


@final
class Memory:
    """The newest rows, oldest first, where they lay when they were added."""

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.rows: Rows = {}

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def add(self, *new: Rows) -> None:
        """Take rows in, all with the same names, and let the oldest of too many go."""
        parts = [self.rows, *new] if self.rows else new
        names = [*new[0]]
        self.rows = {x: torch.cat([part[x] for part in parts])[-self.n_most :] for x in names}

    def draw(self, uniforms: Float[Tensor, " n"]) -> Rows:
        """Return some rows, with replacement, by numbers in [0, 1)."""
        which = (uniforms * len(self)).long().clamp(max=len(self) - 1)
        return {name: value[which] for name, value in self.rows.items()}
