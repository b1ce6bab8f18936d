"""Acquire columns in an order that was chosen beforehand, or from the center outwards.

`kscout.training.fixed_order` chooses it: on training data it is the bar that an adaptive policy
must clear, on the evaluated data themselves it is the paper's NA oracle.
"""

from collections.abc import Sequence
from typing import final

from kscout.policies.ranking import Ranking, scores_of_order


@final
class FixedOrder(Ranking):
    """Takes the first unmeasured column of its order.

    Args:
        n_cols: number of columns of the image.
        order: columns, the first to acquire first; others follow from the center outwards.
    """

    def __init__(self, *, n_cols: int, order: Sequence[int]) -> None:
        super().__init__(scores_of_order(n_cols, order))
        # A tuple, which fingerprints count.
        self.n_cols, self.order = n_cols, tuple(order)


@final
class NaOracle(Ranking):
    """A fixed order chosen on the very data that it is evaluated on: an oracle.

    No fixed order chosen greedily does better on these data, which is why the paper shows it.

    Args:
        n_cols: number of columns of the image.
        order: columns, the first to acquire first; others follow from the center outwards.
    """

    needs_target = True

    def __init__(self, *, n_cols: int, order: Sequence[int]) -> None:
        super().__init__(scores_of_order(n_cols, order))
        # A tuple, which fingerprints count.
        self.n_cols, self.order = n_cols, tuple(order)


@final
class CenterOut(Ranking):
    """Takes the unmeasured column nearest to DC; of two, the one on the left.

    Args:
        n_cols: number of columns of the image.
    """

    def __init__(self, *, n_cols: int) -> None:
        super().__init__(scores_of_order(n_cols, []))
        self.n_cols = n_cols
