"""Acquire columns in an order that was chosen beforehand, or from the center outwards.

`kscout.training.fixed_order` fits it: on training data it is the baseline for adaptive
policies, on the evaluated data it is the paper's NA oracle.
"""

from collections.abc import Sequence
from typing import final

from kscout.policies.ranking import Ranking, scores_of_order


@final
class FixedOrder(Ranking):
    """Acquires the first unmeasured column of its order.

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
    """A fixed order fitted to the data that it is evaluated on: an oracle.

    It is an upper bound for greedily fitted fixed orders on these data, as in the paper.

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
    """Acquires the unmeasured column nearest to DC; of two, the left one.

    Args:
        n_cols: number of columns of the image.
    """

    def __init__(self, *, n_cols: int) -> None:
        super().__init__(scores_of_order(n_cols, []))
        self.n_cols = n_cols
