"""BART's `.cfl` and `.hdr` pairs: complex numbers, the first axis fastest, and their dimensions."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from kscout.data.formats.raw import Index, RawScan, Reopened, named_scan
from kscout.errors import DataError
from kscout.files import read_bytes

_NAMES = {0: "READ", 1: "PHS1", 2: "PHS2", 3: "COIL", 4: "MAPS", 6: "COEFF", 7: "COEFF2"}
_AVERAGE, _N_DIMENSIONS = 14, 16
_LARGEST_HEADER = 2**20


def read_bart(path: Path, axes: tuple[str, ...] | None = None) -> RawScan:
    """Return the k-space of a pair of files; trailing axes of length 1 may be omitted.

    By default READ is the row and PHS1 the column, or PHS1 and PHS2 if READ is 1.
    """
    shape = _dimensions(path)
    declared, held = 8 * math.prod(shape), path.stat().st_size
    if declared != held:
        raise DataError(
            f"{path} has {held} bytes, and its header declares {declared} (dimensions "
            f"{' '.join(map(str, shape))}); copy both files again"
        )
    if axes is None:
        axes = _usual_axes(path, shape)
    axes = (*axes, *("-" for _ in shape[len(axes) :]))

    def look(index: Index) -> np.ndarray:
        return np.array(np.memmap(path, dtype="<c8", mode="r", shape=shape, order="F")[index])

    return named_scan(path, Reopened(look, shape, np.dtype("<c8")), axes)


def _dimensions(path: Path) -> tuple[int, ...]:
    header = path.with_suffix(".hdr")
    if header.is_file() and (n_bytes := header.stat().st_size) > _LARGEST_HEADER:
        raise DataError(
            f"{header} has {n_bytes} bytes, and a header has at most {_LARGEST_HEADER}; copy it "
            "again"
        )
    if not header.is_file():
        raise DataError(
            f"{path} has no {header.name} next to it, which contains its size; copy both files"
        )
    lines = read_bytes(header).decode(errors="replace").splitlines()
    sizes = [after for line, after in pairwise(lines) if "Dimensions" in line]
    words = sizes[0].split() if sizes else []
    if not words or not all(word.isdecimal() and 0 < len(word) < 10 for word in words):
        raise DataError(f"{header} contains no dimensions; copy it again")
    shape = [int(word) for word in words]
    return tuple(shape + [1] * (_N_DIMENSIONS - len(shape)))


def _usual_axes(path: Path, shape: Sequence[int]) -> tuple[str, ...]:
    """Return the axes of BART's dimension order."""
    if shape[0] == 1:
        used = {1: "row", 2: "col", 3: "coil"}
    else:
        used = {0: "row", 1: "col", 3: "coil"}
    if shape[0] > 1 and shape[2] > 1:
        raise DataError(
            f"{path} holds three-dimensional k-space of {shape[0]} x {shape[1]} x {shape[2]}; "
            "transform it along the readout (bart fft -i 1) and name its axes, as in --axes "
            "slice,row,col,coil"
        )
    wrong = [number for number in (4, 6, 7) if shape[number] > 1]
    if wrong:
        raise DataError(
            f"{path} has {shape[wrong[0]]} along {_NAMES[wrong[0]]}, which k-space does not have; "
            "give k-space, or name its axes with --axes"
        )
    rest = {number: "slice" if shape[number] > 1 else "-" for number in range(len(shape))}
    rest |= {_AVERAGE: "average" if shape[_AVERAGE] > 1 else "-"}
    return tuple((rest | used).values())
