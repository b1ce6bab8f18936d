"""Checks that an array of a store matches the manifest, at every opening.

Path, size and header are always checked. The content is checked by a full checksum up to
`READ_WHOLE` bytes and by the checksum of a sample beyond, so that large stores open fast.
"""

import hashlib
import math
import os
import sys
from pathlib import Path

import numpy as np

from kscout.data.formats import reading
from kscout.data.manifest import ArrayRecord
from kscout.errors import DataError
from kscout.files import plain_file

READ_WHOLE = 64 * 2**20
"""Size in bytes of the largest file that is read completely for its check."""
_N_BLOCKS, _BLOCK_BYTES = 64, 2**16
_AGAIN = "copy or make the store again"


def check_array(folder: Path, array: ArrayRecord) -> Path:
    """Return the file of an array after the check."""
    file = folder / array.file
    n_header = _check_header(file, array)
    expected: str | None
    if file.stat().st_size <= READ_WHOLE:
        expected, content = array.sha256, file.read_bytes()
        values = np.frombuffer(content, array.dtype, offset=n_header)
    else:
        expected, content = array.sample_sha256, sample(file, n_header)
        values = np.frombuffer(content, array.dtype)
    if hashlib.sha256(content).hexdigest() != expected:
        raise different(file)
    check_finite(values, file)
    return file


def different(file: Path) -> DataError:
    """Return the error for a file whose content differs from the manifest."""
    return DataError(f"{file} differs from its checksum in the manifest; {_AGAIN}")


def check_finite(values: np.ndarray, file: Path) -> None:
    """Raise an error if any value is NaN or infinite."""
    # Minimum and maximum are not finite if any value is not; they need no copy of a large array.
    real = values.view(values.real.dtype)
    if real.size and not np.isfinite([real.min(), real.max()]).all():
        raise DataError(f"{file} has pixels that are NaN or infinite; {_AGAIN}")


def sample_checksum(file: Path, n_header: int) -> str | None:
    """Return the checksum of a sample of a file; None if the file is always read completely."""
    if file.stat().st_size <= READ_WHOLE:
        return None
    return hashlib.sha256(sample(file, n_header)).hexdigest()


def sample(file: Path, n_header: int) -> bytes:
    """Read blocks spread evenly over the values of a file, including first and last."""
    last = file.stat().st_size - n_header - _BLOCK_BYTES
    blocks = []
    with file.open("rb") as handle:
        for number in range(_N_BLOCKS):
            # Values start at multiples of their size, and 16 bytes is a multiple for every kind.
            handle.seek(n_header + last * number // (_N_BLOCKS - 1) // 16 * 16)
            blocks.append(handle.read(_BLOCK_BYTES))
    return b"".join(blocks)


def source_checksum(file: Path) -> str | None:
    """Return the checksum of a source file; None if it cannot be read.

    Beyond the size of a sample it is the checksum of the modification time and of a sample.
    """
    try:
        with plain_file(file, sys.maxsize) as handle:
            facts = os.fstat(handle.fileno())
            is_small = facts.st_size <= _N_BLOCKS * _BLOCK_BYTES
            content = handle.read() if is_small else sample(file, 0)
    except OSError:
        return None
    head = "" if is_small else f"{facts.st_size} {facts.st_mtime_ns} "
    return hashlib.sha256(head.encode() + content).hexdigest()


def _check_header(file: Path, array: ArrayRecord) -> int:
    """Return the offset of the values after a check of path, header and size."""
    # A pipe would block until something writes to it, and a link may lead to any file.
    if file.is_symlink() or not file.is_file():
        raise DataError(f"{file} is missing or damaged (no regular file); {_AGAIN}")
    with reading(file, "an array", advice=_AGAIN), file.open("rb") as handle:
        np.lib.format.read_magic(handle)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(handle)
        n_header = handle.tell()
    declared = (shape, is_fortran, dtype)
    if declared != (array.shape, False, np.dtype(array.dtype).newbyteorder("<")):
        raise DataError(
            f"{file} holds {dtype} of shape {shape} instead of {array.dtype} of shape "
            f"{array.shape} as the manifest says; {_AGAIN}"
        )
    n_bytes = n_header + math.prod(array.shape) * dtype.itemsize
    if file.stat().st_size != n_bytes:
        raise DataError(f"{file} has {file.stat().st_size} bytes instead of {n_bytes}; {_AGAIN}")
    return n_header
