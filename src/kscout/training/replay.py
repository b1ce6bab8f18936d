"""A replay buffer: the newest rows of tensors by name."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

Rows = dict[str, Tensor]
"""Tensors by name, with one row per state, decision or acquisition."""


@final
class Memory:
    """The newest rows, oldest first, on the device of the added ones."""

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.rows: Rows = {}

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def add(self, *new: Rows) -> None:
        """Add rows with equal names; the oldest surplus rows are removed."""
        parts = [self.rows, *new] if self.rows else new
        names = [*new[0]]
        self.rows = {x: torch.cat([part[x] for part in parts])[-self.n_most :] for x in names}

    def draw(self, uniforms: Float[Tensor, " n"]) -> Rows:
        """Return rows sampled with replacement by numbers in [0, 1)."""
        which = (uniforms * len(self)).long().clamp(max=len(self) - 1)
        return {name: value[which] for name, value in self.rows.items()}
