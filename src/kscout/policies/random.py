"""Sample columns uniformly or with a preference for low frequencies: baselines."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.policies.ranking import Ranking, distance_from_center


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
