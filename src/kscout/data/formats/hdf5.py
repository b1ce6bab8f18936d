"""fastMRI's HDF5 volumes (arXiv:1811.08839)."""

from pathlib import Path

import h5py
import numpy as np

from kscout.data.formats import Stack
from kscout.errors import DataError

TARGET_KEYS = ("reconstruction_esc", "reconstruction_rss")
"""Where single-coil (knee) and multi-coil (brain) targets lie."""


def read_hdf5(path: Path, key: str | None = None) -> tuple[Stack, str]:
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
            "copy it again"
        ) from error
    if stored.ndim != 3 or stored.dtype.kind not in "fiu":
        raise DataError(
            f"{path} holds {found[0]} as {stored.dtype} of shape {stored.shape} instead of real "
            "images slice x row x column; name another data set with --key"
        )
    told = acquisition.decode() if isinstance(acquisition, bytes) else str(acquisition)
    return stored.astype(np.float32, copy=False), told


def _no_target(path: Path, key: str | None, keys: list[str]) -> str:
    wanted = key or " or ".join(TARGET_KEYS)
    message = f"{path} has no {wanted} (it has: {', '.join(keys) or 'nothing'}); "
    if not key and "kspace" in keys:
        message += "fastMRI's public test set has no targets: use --test-from-train, or "
    return message + "name the data set of images with --key"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
