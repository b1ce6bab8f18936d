"""Acquire columns at random with learned chances: the same for every image, and never adaptive."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.errors import ConfigError


@final
class LearnedDensity(Policy):
    """Draws the next column with chances proportional to `exp(logits)` of those that are left.

    So a budget is always met exactly, and the order of the draws is a Plackett-Luce order.

    Args:
        n_cols: number of columns of the image.
    """

    def __init__(self, *, n_cols: int) -> None:
        super().__init__()
        self.n_cols = n_cols
        self.logits = nn.Parameter(torch.zeros(n_cols))

    def forward(self, seen: Observation) -> Float[Tensor, "batch image_col"]:
        n_found = seen.mask.shape[1]
        if self.n_cols != n_found:
            raise ConfigError(
                f"a density of {self.n_cols} columns was given images of {n_found}; train one for "
                f"{n_found}"
            )
        # A copy: without gradients, a view of a parameter would still be one.
        return self.logits.repeat(len(seen.mask), 1)
