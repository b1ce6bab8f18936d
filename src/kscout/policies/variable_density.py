"""Acquire columns at random, low frequencies more often: the classical heuristic."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.policies.ranking import distance_from_center, same_for_all


@final
class VariableDensity(Policy):
    """Draws among the unmeasured columns with a polynomial density.

    Column k columns from the center has probability proportional to
    `(1 - k / (n_cols // 2 + 1)) ** power`, so that the outermost column is rare but not excluded
    (Lustig et al. 2007, Sparse MRI, section on incoherent sampling).

    Args:
        n_cols: number of columns of the image.
        power: how fast the density falls; 0 is uniform.
    """

    scores: Float[Tensor, " col"]

    def __init__(self, *, n_cols: int, power: float = 4.0) -> None:
        super().__init__()
        if power < 0:
            raise ConfigError(
                f"a density of power {power:g} would favor high frequencies; give 0 or more"
            )
        self.n_cols = n_cols
        self.power = power
        density = 1 - distance_from_center(n_cols) / (n_cols // 2 + 1)
        self.register_buffer("scores", power * density.log(), persistent=False)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return same_for_all(self.scores, seen)
