"""Cropping images of volumes by the paper's rules (arXiv:2010.16262), and checking them."""

from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float32, Shaped

from kscout.config.forms import Size, sides
from kscout.data.formats import Stack, check_memory
from kscout.errors import DataError

Images = Shaped[np.ndarray, "slice _ _"]
Cut = Float32[np.ndarray, "kept kept_row kept_col"]

_NEGATIVE_SHARE = 0.01
"""Resampling leaves negative pixels of less than this fraction of the peak."""


@final
class WrongSizeError(DataError):
    """Images smaller than the crop; the message contains no advice."""


def middle_slices(n_slices: int) -> range:
    """Return the middle half of a volume, which shows the anatomy."""
    return range(n_slices // 4, 3 * n_slices // 4)


def zero_pad(images: Images, size: int | Size) -> Images:
    """Surround images with zeros up to `size`; an odd pixel goes to the top and left."""
    wanted = zip(sides(size), images.shape[-2:], strict=True)
    margins = [max(side - length, 0) for side, length in wanted]
    widths = [(0, 0), *(((margin + 1) // 2, margin // 2) for margin in margins)]
    return np.pad(images, widths)


def center_crop(images: Images, size: int | Size) -> Images:
    """Return the middle of images."""
    n_rows, n_cols = sides(size)
    top, left = (images.shape[-2] - n_rows) // 2, (images.shape[-1] - n_cols) // 2
    return images[:, top : top + n_rows, left : left + n_cols]


def cut(images: Stack, path: Path, *, size: Size | None, pad: Size | None) -> Cut:
    """Return the middle of images as configured by `size` and `pad`."""
    n_rows, n_cols = images.shape[-2:]
    if not n_rows or not n_cols:
        raise DataError(f"{path} has images of {n_rows}x{n_cols}, without a pixel; save it again")
    if pad is not None:
        check_memory(path, len(images) * max(pad[0], n_rows) * max(pad[1], n_cols))
        images = zero_pad(images, pad)
    kept = size or pad or (n_rows, n_cols)
    if images.shape[-2] < kept[0] or images.shape[-1] < kept[1]:
        asked = "{}x{}".format(*kept) if kept[0] != kept[1] else kept[0]
        raise WrongSizeError(f"{path} has images of {n_rows}x{n_cols}, smaller than --size {asked}")
    return np.ascontiguousarray(center_crop(images, kept))


def check_pixels(images: Stack, path: Path, *, may_be_negative: bool) -> None:
    """Raise an error for images that are not finite magnitudes."""
    n_bad = int(images.size - np.isfinite(images).sum())
    if n_bad:
        raise DataError(f"{path} has {n_bad} pixels that are NaN or infinite; repair it")
    lowest, peak = float(images.min()), float(images.max())
    if not may_be_negative and lowest < -_NEGATIVE_SHARE * peak:
        raise DataError(
            f"{path} has pixels from {lowest:.3g} to {peak:.3g} instead of magnitudes, which are "
            "not negative; take absolute values with --absolute, or shift them to start at 0 "
            "before importing"
        )
    if peak <= 0:
        raise DataError(
            f"{path} contains only zeros in the {len(images)} slices to import; repair it"
        )
