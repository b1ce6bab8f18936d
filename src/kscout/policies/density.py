"""Sample columns from a learned density, which is the same for every image: not adaptive."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.errors import ConfigError


@final
class LearnedDensity(Policy):
    """Samples an unmeasured column with probability proportional to `exp(logits)`.

    The budget is thus met exactly, and the sequence of samples has a Plackett-Luce distribution.

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
                f"a density of {self.n_cols} columns was given images of {n_found}; train one with "
                f"{n_found}"
            )
        # A copy, because a view of a parameter would be a parameter for torch.
        return self.logits.repeat(len(seen.mask), 1)
