"""Sample columns uniformly, with a preference for low frequencies, or from a learned density."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.policies.fixed import Ranking, distance_from_center


@final
class Random(Policy):
    """Samples uniformly among the unmeasured columns."""

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return seen.image.new_zeros(seen.mask.shape)


@final
class VariableDensity(Ranking):
    """Samples among the unmeasured columns with a polynomial density.

    Column k columns from the center has probability proportional to
    `(1 - k / (n_cols // 2 + 1)) ** power`, so that the outermost column is rare but not excluded
    (Lustig et al. 2007, Sparse MRI, section on incoherent sampling).

    Args:
        n_cols: number of columns of the image.
        power: how fast the density falls; 0 is uniform.
    """

    is_stochastic = True

    def __init__(self, *, n_cols: int, power: float = 4.0) -> None:
        if power < 0:
            raise ConfigError(
                f"a density of power {power:g} would favor high frequencies; give 0 or more"
            )
        density = 1 - distance_from_center(n_cols) / (n_cols // 2 + 1)
        super().__init__(power * density.log())
        self.n_cols, self.power = n_cols, power


@final
class LearnedDensity(Policy):
    """Samples an unmeasured column with probability proportional to `exp(logits)`.

    The budget is thus met exactly, and the sequence of samples has a Plackett-Luce distribution.
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
