"""Mean gains of a fixed order, read for matrices that they were not measured on."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.physics.fourier import frequencies


def at_frequencies(
    gains: Float[Tensor, "step col"], n_cols: int
) -> Float[Tensor, "step other_col"]:
    """Return gains at the columns of another matrix, by frequency in cycles per pixel."""
    n_known = gains.shape[1]
    if n_cols == n_known:
        return gains
    place = frequencies(n_cols, gains.device) * (n_known / n_cols) + n_known // 2
    place = place.clamp(min=0, max=n_known - 1)
    below = place.floor().long().clamp(max=n_known - 2)
    return torch.lerp(gains[:, below], gains[:, below + 1], place - below)


def nearest_size(n_cols: int, known: Sequence[int]) -> int:
    """Return which of some matrices has its columns nearest to so many, by their ratio."""
    return min(known, key=lambda size: abs(math.log(size / n_cols)))


def row_of(
    measured: Int[Tensor, " n"], n_first: int, n_rows: int, *, share: float
) -> Int[Tensor, " n"]:
    """Return which row of a table belongs to so many measured columns.

    Args:
        measured: columns of some matrix.
        n_first: columns that are measured at the first row.
        n_rows: of the table.
        share: columns of the table's matrix for one of that matrix.
    """
    return ((measured * share).round().long() - n_first).clamp(min=0, max=n_rows - 1)
