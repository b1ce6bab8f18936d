"""Resampling images to another pixel spacing, without aliasing."""

import math

import numpy as np
from jaxtyping import Float32

from kscout.data.formats import Stack

Spacing = tuple[float, float]
"""Distance of neighboring rows, and of neighboring columns, in mm."""

Resampled = Float32[np.ndarray, "slice new_row new_col"]

_LOBES = 4
"""Zero crossings of the sinc on each side, up to the end of the window."""


def resampled_size(size: tuple[int, int], old_mm: Spacing, new_mm: Spacing) -> tuple[int, int]:
    """Return the rows and columns that cover the same field of view at another spacing."""
    rows, cols = (
        max(1, round(length * old / new))
        for length, old, new in zip(size, old_mm, new_mm, strict=True)
    )
    return rows, cols


def resample(images: Stack, old_mm: Spacing, new_mm: Spacing) -> Resampled:
    r"""Return images at another spacing with unchanged center.

    Every new pixel at $x$ is $\sum_i w(x - x_i) f_i / \sum_i w(x - x_i)$, where $w$ is a sinc
    under the main lobe of a wider one (Lanczos), as wide as the coarser of both grids, which
    prevents aliasing. Negative overshoot is clipped.
    """
    lowest = min(float(images.min()), 0.0)
    size = resampled_size(images.shape[1:], old_mm, new_mm)
    for axis in (0, 1):
        scale = new_mm[axis] / old_mm[axis]
        if not math.isclose(scale, 1):
            weights = _weights(images.shape[axis + 1], size[axis], scale)
            # Rows are summed from the left; columns from the right.
            images = weights @ images if axis == 0 else images @ weights.T
    return np.maximum(images, np.float32(lowest))


def _weights(n_old: int, n_new: int, scale: float) -> Float32[np.ndarray, "{n_new} {n_old}"]:
    """Return the weight of each old pixel in each new one; `scale` is new / old spacing."""
    places = (np.arange(n_new) - (n_new - 1) / 2) * scale + (n_old - 1) / 2
    distance = (places[:, None] - np.arange(n_old)) / max(scale, 1.0)
    weights = np.sinc(distance) * np.sinc(distance / _LOBES) * (np.abs(distance) < _LOBES)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
