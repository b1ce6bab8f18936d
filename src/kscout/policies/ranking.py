"""Scores that are equal for every image, the common part of non-adaptive policies."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.columns import whole_order
from kscout.core import Observation, Policy
from kscout.errors import ConfigError


def distance_from_center(n_cols: int) -> Float[Tensor, " col"]:
    """Return the distance of each column from DC, which is column `n_cols // 2`."""
    return (torch.arange(n_cols) - n_cols // 2).abs().float()


def scores_of_order(n_cols: int, order: Sequence[int]) -> Float[Tensor, " col"]:
    """Return scores that rank columns in the given order, then from the center outwards.

    Args:
        n_cols: number of columns of the image.
        order: columns in the order of acquisition; missing ones follow after them.
    """
    # Without a tensor: on the device meta, which checks weights, torch would load its compiler.
    places = {column: place for place, column in enumerate(whole_order(n_cols, order))}
    return torch.tensor([-float(places[column]) for column in range(n_cols)])


class Ranking(Policy):
    """A policy with equal scores for every image.

    Args:
        scores: one per column.
    """

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
