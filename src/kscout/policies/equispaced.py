"""Acquire every r-th column, on one side of k-space or on both: the paper's fixed masks.

Columns are spread evenly over the columns that are free at the start, from the edge to the
center; two-sided orders acquire the left side first. Columns equal those of the paper's
reference, which rounds down on either side, so that the sides are not mirror images.
"""

from typing import final

from kscout.columns import center_columns
from kscout.errors import ConfigError
from kscout.policies.ranking import Ranking, scores_of_order


def one_sided_columns(*, n_cols: int, n_initial: int, horizon: int) -> list[int]:
    """Return the columns left of the center, in the order of acquisition."""
    n_left = center_columns(n_cols, n_initial).start
    _check_room("one", n_left, horizon)
    # Integers only: floating point would drop a column if the last step is exact.
    return [i * n_left // horizon - 1 for i in range(1, horizon + 1)]


def two_sided_columns(*, n_cols: int, n_initial: int, horizon: int) -> list[int]:
    """Return the columns on both sides, left ones first; the left side has the odd one."""
    center = center_columns(n_cols, n_initial)
    n_right, n_right_steps = n_cols - center.stop, horizon // 2
    _check_room("two", center.start, horizon - n_right_steps)
    _check_room("two", n_right, n_right_steps)
    left = one_sided_columns(n_cols=n_cols, n_initial=n_initial, horizon=horizon - n_right_steps)
    right = [n_cols - -(-i * n_right // n_right_steps) for i in range(1, n_right_steps + 1)]
    return left + right


def _check_room(name: str, n_free: int, horizon: int) -> None:
    if horizon > n_free:
        raise ConfigError(
            f"equispaced-{name} cannot place {horizon} columns on one side of k-space, which has "
            f"{n_free} free columns; lower the number of steps or use another policy"
        )


@final
class EquispacedOne(Ranking):
    """Spreads columns over the left side of k-space (paper: Equi (one)).

    Args:
        n_cols: number of columns of the image.
        n_initial: central columns measured at the start.
        horizon: columns to acquire.
    """

    def __init__(self, *, n_cols: int, n_initial: int, horizon: int) -> None:
        order = one_sided_columns(n_cols=n_cols, n_initial=n_initial, horizon=horizon)
        super().__init__(scores_of_order(n_cols, order))
        self.n_cols, self.n_initial, self.horizon = n_cols, n_initial, horizon


@final
class EquispacedTwo(Ranking):
    """Spreads columns over both sides of k-space (paper: Equi (two)); same arguments."""

    def __init__(self, *, n_cols: int, n_initial: int, horizon: int) -> None:
        order = two_sided_columns(n_cols=n_cols, n_initial=n_initial, horizon=horizon)
        super().__init__(scores_of_order(n_cols, order))
        self.n_cols, self.n_initial, self.horizon = n_cols, n_initial, horizon
