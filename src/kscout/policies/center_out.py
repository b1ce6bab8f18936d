"""Acquire columns from the center of k-space outwards."""

from typing import final

from kscout.policies.ranking import Ranking, scores_of_order


@final
class CenterOut(Ranking):
    """Takes the unmeasured column nearest to DC; of two, the one on the left.

    Args:
        n_cols: number of columns of the image.
    """

    def __init__(self, *, n_cols: int) -> None:
        super().__init__(scores_of_order(n_cols, []))
        self.n_cols = n_cols
