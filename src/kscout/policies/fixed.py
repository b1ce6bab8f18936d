"""Policies with equal scores for every image: orders that are chosen beforehand.

`kscout.training.fixed_order` fits an order: on training data it is the baseline for adaptive
policies, on the evaluated data it is the paper's NA oracle.

Equispaced columns are the paper's fixed masks: every r-th column of those that are free at the
start, from the edge to the center; two-sided orders acquire the left side first. Columns equal
those of the paper's reference, which rounds down on either side, so that the sides are not mirror
images.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.columns import center_columns, whole_order
from kscout.core import Observation, Policy
from kscout.errors import ConfigError


def distance_from_center(n_cols: int) -> Float[Tensor, " col"]:
    """Return the distance of each column from DC, which is column `n_cols // 2`."""
    return (torch.arange(n_cols) - n_cols // 2).abs().float()


def scores_of_order(n_cols: int, order: Sequence[int]) -> Float[Tensor, " col"]:
    """Return scores that rank columns in the given order, then from the center outwards."""
    # Without a tensor: on the device meta, which checks weights, torch would load its compiler.
    places = {column: place for place, column in enumerate(whole_order(n_cols, order))}
    return torch.tensor([-float(places[column]) for column in range(n_cols)])


class Ranking(Policy):
    """A policy with equal scores for every image."""

    is_stochastic = False
    scores: Float[Tensor, " col"]

    def __init__(self, scores: Float[Tensor, " col"]) -> None:
        super().__init__()
        self.register_buffer("scores", scores, persistent=False)

    def forward(self, seen: Observation) -> Float[Tensor, "batch image_col"]:
        """Return the scores for every image; raise an error for images of another width."""
        n_cols, n_found = len(self.scores), seen.mask.shape[1]
        if n_cols != n_found:
            raise ConfigError(
                f"a policy for {n_cols} columns was given images of {n_found}; "
                f"build it with n_cols = {n_found}"
            )
        return self.scores.expand(seen.mask.shape)


class GivenOrder(Ranking):
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
class FixedOrder(GivenOrder):
    """An order that was chosen beforehand, such as one fitted to training data."""


@final
class NaOracle(GivenOrder):
    """An order fitted to the data that it is evaluated on: an oracle.

    It is an upper bound for greedily fitted fixed orders on these data, as in the paper.
    """

    needs_target = True


@final
class CenterOut(Ranking):
    """Acquires the unmeasured column nearest to DC; of two, the left one."""

    def __init__(self, *, n_cols: int) -> None:
        super().__init__(scores_of_order(n_cols, []))
        self.n_cols = n_cols


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
    """Spreads columns over the left side of k-space (paper: Equi (one))."""

    def __init__(self, *, n_cols: int, n_initial: int, horizon: int) -> None:
        order = one_sided_columns(n_cols=n_cols, n_initial=n_initial, horizon=horizon)
        super().__init__(scores_of_order(n_cols, order))
        self.n_cols, self.n_initial, self.horizon = n_cols, n_initial, horizon


@final
class EquispacedTwo(Ranking):
    """Spreads columns over both sides of k-space (paper: Equi (two))."""

    def __init__(self, *, n_cols: int, n_initial: int, horizon: int) -> None:
        order = two_sided_columns(n_cols=n_cols, n_initial=n_initial, horizon=horizon)
        super().__init__(scores_of_order(n_cols, order))
        self.n_cols, self.n_initial, self.horizon = n_cols, n_initial, horizon
