"""The result of k-space readers: a scan whose slices are read on request."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsInt, final

import numpy as np
from jaxtyping import Bool, Complex64

from kscout.config.bounds import LARGEST_SIDE
from kscout.data.formats import check_expansion, check_memory
from kscout.data.transforms import to_kspace
from kscout.errors import DataError
from kscout.names import Origin

Slices = Complex64[np.ndarray, "slice coil row col"]

Index = tuple[int | slice, ...]

LARGEST_SCAN = 2**20
"""Largest number of slices, and of coils, that a file may declare."""


class RawScan(NamedTuple):
    """The k-space of one volume, centered, with phase encoding along columns."""

    shape: tuple[int, int, int, int]
    """Slices, coils, rows and columns."""
    read: Callable[[int, int], Slices]
    """Function that reads slices in [first, last)."""
    acquisition: str = ""
    """Contrast as named in the file."""
    spacing_mm: tuple[float, float] | None = None
    """Distance of rows, and of columns, in the image of the full k-space."""
    n_readout: int | None = None
    """Number of rows without the readout's oversampling; None if unspecified."""
    encoded: tuple[int, int] | None = None
    """First and one past the last encoded column; None: the columns that the file contains."""
    measured: Bool[np.ndarray, " col"] | None = None
    """Columns that the file marks as measured."""
    notes: tuple[str, ...] = ()
    """Corrections and omissions of measured lines."""
    of_images: bool = False
    """Whether k-space is the transform of complex images."""

    def centered(self, origin: Origin) -> "RawScan":
        """Return the same k-space with its center, and that of its image, in the middle."""
        if origin == "center":
            return self

        def read(first: int, last: int) -> Slices:
            values = self.read(first, last)
            if origin == "image":
                return to_kspace(values)
            if origin == "plain":
                values = values * (_ramp(values.shape[-2])[:, None] * _ramp(values.shape[-1]))
            return np.fft.fftshift(values, axes=(-2, -1))

        measured = None if self.measured is None else np.fft.fftshift(self.measured)
        return self._replace(
            read=read, encoded=None, measured=measured, of_images=origin == "image"
        )


@final
class Reopened:
    """An array whose file is opened again for each access; values are not cached."""

    def __init__(
        self, look: Callable[[Index], np.ndarray], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.look, self.shape, self.dtype = look, shape, dtype

    def __getitem__(self, index: Index) -> np.ndarray:
        return self.look(index)


def named_scan(path: Path, array: "np.ndarray | Reopened", axes: Sequence[str]) -> RawScan:
    """Return the slices of an array of complex numbers, or of pairs `real` and `imag`.

    Axes are `slice` (several are counted together, the last fastest), `coil`, `row`, `col`,
    `average` (the mean is taken) and `-` for axes of length 1.
    """
    check_axes(path, array.shape, array.dtype, axes)
    lengths = {
        axis: array.shape[axes.index(axis)] for axis in ("coil", "row", "col") if axis in axes
    }
    outer = [length for axis, length in zip(axes, array.shape, strict=True) if axis == "slice"]
    n_coils = lengths.get("coil", 1)
    shape = (math.prod(outer), n_coils, lengths["row"], lengths["col"])
    check_shape(path, shape)

    def read(first: int, last: int) -> Slices:
        kspace = np.empty((last - first, *shape[1:]), dtype=np.complex64)
        for number in range(first, last):
            kspace[number - first] = _slice(array, axes, np.unravel_index(number, outer or [1]))
        return kspace

    return RawScan(shape, read)


def _ramp(n: int) -> Complex64[np.ndarray, " n"]:
    """Return the phase ramp in k-space of a shift of the image's center from the first index.

    Unlike a transform, a product keeps zeros, which mark columns that were not measured.
    """
    turns = np.arange(n) * (n // 2) % n / n
    return np.exp(2j * np.pi * turns).round(15).astype(np.complex64)


def check_axes(path: Path, shape: Sequence[int], dtype: np.dtype[Any], axes: Sequence[str]) -> None:
    """Raise an error for an array that does not match its named axes, or is not complex."""
    if len(axes) != len(shape):
        raise DataError(
            f"{path} holds an array of shape {tuple(shape)}, and {len(axes)} axes are named "
            f"({','.join(axes)}); name every axis with --axes"
        )
    if dtype.kind != "c" and not {"real", "imag"} <= set(dtype.names or ()):
        raise DataError(
            f"{path} contains {dtype} of shape {tuple(shape)} instead of complex k-space; save it "
            "complex, or import images without coil and average in --axes"
        )
    wrong = [length for axis, length in zip(axes, shape, strict=True) if axis == "-" and length > 1]
    if wrong:
        raise DataError(
            f"{path} has an axis of length {wrong[0]} that --axes marks as -; name it slice or "
            "average"
        )


def check_shape(path: Path, shape: Sequence[int]) -> None:
    """Raise an error for a scan with implausible numbers of slices, coils, rows or columns."""
    n_slices, n_coils, n_rows, n_cols = shape
    is_huge = max(n_slices, n_coils) > LARGEST_SCAN or max(n_rows, n_cols) > LARGEST_SIDE
    if min(shape) < 1 or is_huge:
        raise DataError(
            f"{path} has {n_slices} slices of {n_coils} coils, {n_rows} rows and {n_cols} columns, "
            "which is implausible; name its axes with --axes, or save it again"
        )
    check_memory(path, n_coils * n_rows * n_cols)


def check_declared(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise an error for an array that declares more values than its file can contain."""
    n_bytes = math.prod(int(length) for length in shape) * dtype.itemsize
    what = "records" if dtype.names else str(dtype)
    check_expansion(path, n_bytes, f"{what} of shape {tuple(shape)}")


def _slice(
    array: np.ndarray | Reopened, axes: Sequence[str], at: Sequence[SupportsInt]
) -> np.ndarray:
    """Read one slice, coil x row x col, of an array with any order of axes."""
    place = iter(at)
    index = tuple(
        int(next(place)) if axis == "slice" else 0 if axis == "-" else slice(None) for axis in axes
    )
    values = array[index]
    if values.dtype.names:
        values = values["real"] + 1j * values["imag"]
    left = [axis for axis in axes if axis not in ("slice", "-")]
    for axis in reversed(range(len(left))):
        if left[axis] == "average":
            values = values.mean(axis=axis)
            del left[axis]
    if "coil" not in left:
        values, left = values[None], ["coil", *left]
    return np.transpose(values, [left.index(axis) for axis in ("coil", "row", "col")])
