"""NumPy's `.npy` and `.npz` files."""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from kscout.data.formats import (
    ImageScan,
    check_expansion,
    check_size,
    complex_advice,
    listed,
    ordered,
)
from kscout.errors import DataError

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_numpy(
    path: Path, key: str | None = None, axes: tuple[str, ...] | None = None
) -> ImageScan:
    """Return a stack of real images."""
    with opened(path, key) as (file, n_bytes):
        n_axes = (2, 3) if axes is None else (len(axes),)
        stack = read_array(file, path, n_bytes, n_axes=n_axes)
    images = stack.astype(np.float32, copy=False)
    return ImageScan(
        ordered(images, axes, path) if axes else images[None] if stack.ndim < 3 else images
    )


@contextmanager
def opened(path: Path, key: str | None) -> Iterator[tuple[IO[bytes], int]]:
    """Open an array, or the selected one of an archive, and return its number of bytes."""
    # By content, because an archive may have the suffix .npy.
    if not zipfile.is_zipfile(path):
        with path.open("rb") as plain:
            yield plain, path.stat().st_size
        return
    with zipfile.ZipFile(path) as archive:
        keys = {member.removesuffix(".npy"): member for member in archive.namelist()}
        key = next(iter(keys)) if key is None and len(keys) == 1 else key
        if key not in keys:
            raise DataError(f"{path} holds the arrays {listed(keys)}; name one of them with --key")
        member = archive.getinfo(keys[key])
        check_expansion(path, member.file_size, member.filename)
        with archive.open(member) as file:
            yield file, member.file_size


def is_real(path: Path, key: str | None) -> bool:
    """Return whether a file contains an array of real numbers, by its header."""
    # The reader reports files that cannot be read.
    with suppress(Exception), opened(path, key) as (file, n_bytes):
        return read_header(file, path, n_bytes)[2].kind in "fiub"
    return False


def read_array(
    file: IO[bytes], path: Path, n_bytes: int, *, n_axes: tuple[int, ...] = ()
) -> np.ndarray:
    """Read an array of real numbers after a check of its header."""
    shape, _, dtype = read_header(file, path, n_bytes)
    if dtype.kind == "c":
        raise DataError(
            f"{path} holds {dtype} of shape {shape}, and kscout imports magnitudes of images: "
            f"{complex_advice(len(shape))}"
        )
    if dtype.kind not in "fiub" or (n_axes and len(shape) not in n_axes):
        has_colors = len(shape) > 3 and shape[-1] in (3, 4)
        remedy = "save gray values" if has_colors else "save it"
        raise DataError(
            f"{path} holds {dtype} of shape {shape} instead of real images slice x row x column; "
            f"{remedy} with these axes, or name all of its axes with --axes"
        )
    check_size(path, shape, dtype)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def read_header(
    file: IO[bytes], path: Path, n_bytes: int
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype of an array after a check of its size."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise DataError(
            f"{path} has version {version[0]}.{version[1]} of NumPy's format, which is not "
            "supported; save it again"
        )
    shape, is_fortran, dtype = _HEADERS[version](file)
    declared, held = math.prod(shape) * dtype.itemsize, n_bytes - file.tell()
    if declared > held:
        raise DataError(
            f"{path} declares {dtype} of shape {shape}, which are {declared} bytes, and holds "
            f"{held}; it may be truncated: copy it again"
        )
    return shape, is_fortran, dtype
