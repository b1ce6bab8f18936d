"""Acquire columns from the center of k-space outwards."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy
from kscout.policies.ranking import same_for_all, scores_of_order


@final
class CenterOut(Policy):
    """Takes the unmeasured column nearest to DC; of two, the one on the left.

    Args:
        n_cols: number of columns of the image.
    """

    is_stochastic = False
    scores: Float[Tensor, " col"]

    def __init__(self, *, n_cols: int) -> None:
        super().__init__()
        self.n_cols = n_cols
        self.register_buffer("scores", scores_of_order(n_cols, []), persistent=False)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return same_for_all(self.scores, seen)
