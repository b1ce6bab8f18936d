"""Cutting volumes into square images by the paper's rules (arXiv:2010.16262), and checking them."""

from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float32, Shaped

from kscout.data.formats import Stack, check_memory
from kscout.errors import DataError

Images = Shaped[np.ndarray, "slice _ _"]
Squares = Float32[np.ndarray, "kept side side"]

_NEGATIVE_SHARE = 0.01
"""Resampling leaves pixels that lie below zero by less than this share of the peak."""


@final
class WrongSizeError(DataError):
    """Images of which no square of the size asked for can be cut; told without an advice."""


def middle_slices(n_slices: int) -> range:
    """Return the middle half of a volume, where the anatomy is."""
    return range(n_slices // 4, 3 * n_slices // 4)


def zero_pad(images: Images, size: int) -> Images:
    """Surround images with zeros up to `size`; an odd pixel goes to the top and left."""
    margins = [max(size - length, 0) for length in images.shape[-2:]]
    widths = [(0, 0), *(((margin + 1) // 2, margin // 2) for margin in margins)]
    return np.pad(images, widths)


def center_crop(images: Images, size: int) -> Shaped[np.ndarray, "slice {size} {size}"]:
    """Cut the central square out of images."""
    top, left = ((length - size) // 2 for length in images.shape[-2:])
    return images[:, top : top + size, left : left + size]


def cut_squares(images: Stack, path: Path, *, size: int | None, pad: int | None) -> Squares:
    """Return the central squares of images.

    Args:
        images: of one volume.
        path: its file, for messages.
        size: side of the squares; None keeps whole images.
        pad: images smaller than this are surrounded with zeros first.
    """
    n_rows, n_cols = images.shape[-2:]
    if not n_rows or not n_cols:
        raise DataError(f"{path} has images of {n_rows}x{n_cols}, without a pixel; save it again")
    if pad is not None:
        check_memory(path, len(images) * max(pad, n_rows) * max(pad, n_cols))
        images = zero_pad(images, pad)
    elif n_rows != n_cols and size is None:
        raise WrongSizeError(f"{path} has images of {n_rows}x{n_cols}, which are not square")
    side = size or pad or n_rows
    if min(images.shape[-2:]) < side:
        raise WrongSizeError(f"{path} has images of {n_rows}x{n_cols}, smaller than --size {side}")
    return np.ascontiguousarray(center_crop(images, side))


def check_pixels(images: Stack, path: Path, *, may_be_negative: bool) -> None:
    """Refuse images that are not finite magnitudes.

    Args:
        images: of one volume.
        path: its file, for messages.
        may_be_negative: whether negative pixels pass.
    """
    n_bad = int(images.size - np.isfinite(images).sum())
    if n_bad:
        raise DataError(f"{path} has {n_bad} pixels that are NaN or infinite; repair it")
    lowest, peak = float(images.min()), float(images.max())
    if not may_be_negative and lowest < -_NEGATIVE_SHARE * peak:
        raise DataError(
            f"{path} has pixels from {lowest:.3g} to {peak:.3g} instead of magnitudes, which are "
            "not negative; take absolute values or shift them to start at 0 before importing"
        )
    if peak <= 0:
        raise DataError(
            f"{path} holds nothing but zeros in the {len(images)} slices that are kept; repair it"
        )
