"""fastMRI's HDF5 volumes and the paper's rules for cutting them (arXiv:2010.16262, 1811.08839)."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np
from jaxtyping import Float32, Shaped

from kscout.errors import DataError

TARGET_KEYS = ("reconstruction_esc", "reconstruction_rss")
"""Where single-coil (knee) and multi-coil (brain) targets lie."""

T = TypeVar("T")


def read_hdf5(
    path: Path, key: str | None = None
) -> tuple[Float32[np.ndarray, "slice row col"], str]:
    """Return the target images and the acquisition of a volume; nothing else is needed in it.

    Args:
        path: the HDF5 file.
        key: the data set that holds the images; by default whichever of `TARGET_KEYS` is there.
    """
    try:
        with h5py.File(path, "r") as file:
            found = [name for name in ((key,) if key else TARGET_KEYS) if name in file]
            if not found:
                raise DataError(_no_target(path, key, sorted(file)))
            stored = file[found[0]][()]
            acquisition = file.attrs.get("acquisition", "")
    except (OSError, RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as HDF5 ({_first_line(error)}); it may be truncated: "
            "copy it again, or leave it out with --skip-bad"
        ) from error
    if stored.ndim != 3 or stored.dtype.kind not in "fiu":
        raise DataError(
            f"{path} holds {found[0]} as {stored.dtype} of shape {stored.shape} instead of real "
            "images slice x row x column; name another data set with --key"
        )
    return stored.astype(np.float32, copy=False), acquisition.decode() if isinstance(
        acquisition, bytes
    ) else str(acquisition)


def middle_slices(n_slices: int) -> range:
    """Return the middle half of a volume, where the anatomy is."""
    return range(n_slices // 4, 3 * n_slices // 4)


def sample_volumes(volumes: Sequence[T], rate: float) -> list[T]:
    """Keep a share of a sorted list, drawn as the reference does and sorted as it was."""
    if rate >= 1:
        return list(volumes)
    order = list(range(len(volumes)))
    random.Random(0).shuffle(order)
    return [volumes[i] for i in sorted(order[: round(len(order) * rate)])]


def zero_pad(
    images: Shaped[np.ndarray, "slice row col"], size: int
) -> Shaped[np.ndarray, "slice padded_row padded_col"]:
    """Surround images with zeros up to `size`; an odd pixel goes to the top and left."""
    margins = [max(size - length, 0) for length in images.shape[-2:]]
    widths = [(0, 0), *(((margin + 1) // 2, margin // 2) for margin in margins)]
    return np.pad(images, widths)


def center_crop(
    images: Shaped[np.ndarray, "slice row col"], size: int
) -> Shaped[np.ndarray, "slice side side"]:
    """Cut the central square out of images."""
    top, left = ((length - size) // 2 for length in images.shape[-2:])
    return images[:, top : top + size, left : left + size]


def _no_target(path: Path, key: str | None, keys: list[str]) -> str:
    wanted = key or " or ".join(TARGET_KEYS)
    message = f"{path} has no {wanted} (it has: {', '.join(keys) or 'nothing'}); "
    if not key and "kspace" in keys:
        message += "fastMRI's public test set has no targets: use --test-from-train, or "
    return message + "name the data set of images with --key, or leave it out with --skip-bad"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
