"""Scores that are the same for every image: what all non-adaptive policies share."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.columns import whole_order
from kscout.core import Observation, Policy
from kscout.errors import ConfigError


def distance_from_center(n_cols: int) -> Float[Tensor, " col"]:
    """Return how many columns each column lies from DC, which is column `n_cols // 2`."""
    return (torch.arange(n_cols) - n_cols // 2).abs().float()


def scores_of_order(n_cols: int, order: Sequence[int]) -> Float[Tensor, " col"]:
    """Return scores by which columns are taken in the given order, then from the center outwards.

    Args:
        n_cols: number of columns of the image.
        order: columns, the first to acquire first; those that are missing come after them all.
    """
    # Not by a tensor: on the device meta, where weights are checked, torch would load its compiler.
    places = {column: place for place, column in enumerate(whole_order(n_cols, order))}
    return torch.tensor([-float(places[column]) for column in range(n_cols)])


class Ranking(Policy):
    """A policy that gives every image the same scores.

    Args:
        scores: one per column.
    """

    is_stochastic = False
    scores: Float[Tensor, " col"]

    def __init__(self, scores: Float[Tensor, " col"]) -> None:
        super().__init__()
        self.register_buffer("scores", scores, persistent=False)

    def forward(self, seen: Observation) -> Float[Tensor, "batch image_col"]:
        """Return the scores once for every image, refusing images of another width."""
        n_cols, n_found = len(self.scores), seen.mask.shape[1]
        if n_cols != n_found:
            raise ConfigError(
                f"a policy for {n_cols} columns was given images of {n_found}; "
                f"build it with n_cols = {n_found}"
            )
        return self.scores.expand(seen.mask.shape)
