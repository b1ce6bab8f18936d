"""Acquire columns in an order that was chosen beforehand, the same for every image.

`kscout.training.fixed_order` chooses it: on training data it is the bar that an adaptive policy
must clear, on the evaluated data themselves it is the paper's NA oracle.
"""

from typing import final

from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy
from kscout.policies.ranking import same_for_all, scores_of_order


@final
class FixedOrder(Policy):
    """Takes the first unmeasured column of its order.

    Args:
        n_cols: number of columns of the image.
        order: columns, the first to acquire first; others follow from the center outwards.
    """

    is_stochastic = False
    scores: Float[Tensor, " col"]

    def __init__(self, *, n_cols: int, order: list[int]) -> None:
        super().__init__()
        self.n_cols = n_cols
        self.order = list(order)
        self.register_buffer("scores", scores_of_order(n_cols, order), persistent=False)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return same_for_all(self.scores, seen)


@final
class NaOracle(Policy):
    """A fixed order chosen on the very data that it is evaluated on: an oracle.

    No fixed order chosen greedily does better on these data, which is why the paper shows it.

    Args:
        n_cols: number of columns of the image.
        order: columns, the first to acquire first; others follow from the center outwards.
    """

    is_stochastic = False
    needs_target = True
    scores: Float[Tensor, " col"]

    def __init__(self, *, n_cols: int, order: list[int]) -> None:
        super().__init__()
        self.n_cols = n_cols
        self.order = list(order)
        self.register_buffer("scores", scores_of_order(n_cols, order), persistent=False)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return same_for_all(self.scores, seen)
