"""Converts measured lines to slices: sorts by counters, averages, reverses, whitens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Complex64, Int, Shaped

from kscout.data.formats.raw import RawScan, Slices, check_shape
from kscout.errors import DataError

Line = Complex64[np.ndarray, "coil sample"]
ReadLines = Callable[[np.ndarray], list[np.ndarray]]
"""Reads lines of the given ascending indices; each is coil x sample."""

_NOISE_SAMPLES = 2**18
"""Largest number of noise samples that are used."""


@final
@dataclass(frozen=True)
class Readouts:
    """The lines of a measurement that contribute to images, one entry each."""

    number: Int[np.ndarray, " line"]
    """Index in the file."""
    place: Int[np.ndarray, "line counter"]
    """Counters that distinguish slices, such as contrast, repetition and slice."""
    column: Int[np.ndarray, " line"]
    n_samples: Int[np.ndarray, " line"]
    center: Int[np.ndarray, " line"]
    """The sample at the center of k-space."""
    is_reversed: Bool[np.ndarray, " line"]

    def scan(
        self,
        path: Path,
        read_lines: ReadLines,
        *,
        size: tuple[int, int, int],
        whitening: Complex64[np.ndarray, "coil coil"] | None = None,
    ) -> RawScan:
        """Return the slices of the lines; `size` has coils, rows and columns."""
        n_coils, n_rows, n_cols = size
        places, owner = np.unique(self.place, axis=0, return_inverse=True)
        shape = (len(places), n_coils, n_rows, n_cols)
        check_shape(path, shape)
        self._check(path, n_rows, n_cols)
        order = np.argsort(owner.ravel(), kind="stable")
        ends = np.searchsorted(owner.ravel()[order], np.arange(len(places) + 1))

        def read(first: int, last: int) -> Slices:
            data = np.zeros((last - first, *shape[1:]), dtype=np.complex64)
            for number in range(first, last):
                mine = np.sort(order[ends[number] : ends[number + 1]])
                self._fill(data[number - first], mine, read_lines, path)
            if whitening is not None:
                data = np.einsum("ij,sjrc->sirc", whitening, data).astype(np.complex64)
            return data

        return RawScan(shape, read)

    def _check(self, path: Path, n_rows: int, n_cols: int) -> None:
        bad = np.flatnonzero((self.column < 0) | (self.column >= n_cols))
        if len(bad):
            raise DataError(
                f"{path} has line {int(self.number[bad[0]])} at column {int(self.column[bad[0]])} "
                f"of an encoded matrix of {n_cols}; correct the header's encoding limits"
            )
        first = n_rows // 2 - self.center
        bad = np.flatnonzero((first < 0) | (first + self.n_samples > n_rows))
        if len(bad):
            raise DataError(
                f"{path} has line {int(self.number[bad[0]])} of {int(self.n_samples[bad[0]])} "
                f"samples, its center {int(self.center[bad[0]])}, in a matrix of {n_rows} rows; "
                "correct the header's matrix size"
            )

    def _fill(self, data: np.ndarray, mine: np.ndarray, read_lines: ReadLines, path: Path) -> None:
        """Copy lines into a slice; lines of one column are averaged."""
        n_rows, count = data.shape[-2], np.zeros(data.shape[-1], dtype=np.int64)
        for line, values in zip(mine, read_lines(self.number[mine]), strict=True):
            if values.shape != (len(data), self.n_samples[line]):
                raise DataError(
                    f"{path} has line {int(self.number[line])} of {values.shape} coils and samples "
                    f"among lines of {len(data)} coils; split it up"
                )
            if self.is_reversed[line]:
                values = values[:, ::-1]
            first = n_rows // 2 - int(self.center[line])
            column = int(self.column[line])
            data[:, first : first + values.shape[1], column] += values
            count[column] += 1
        data /= np.maximum(count, 1).astype(np.float32)


def whiten(path: Path, lines: list[np.ndarray], n_coils: int) -> Complex64[np.ndarray, "coil coil"]:
    """Return W with W N W^H = c I for the noise covariance N; the mean level stays."""
    if any(len(line) != n_coils for line in lines):
        raise DataError(f"{path} has noise of another number of coils than {n_coils}; split it up")
    noise = np.concatenate(lines, axis=1)[:, :_NOISE_SAMPLES].astype(np.complex128)
    if not np.isfinite(noise).all():
        raise DataError(
            f"{path} has NaN or infinite values in its noise scan; remove the noise scan"
        )
    covariance = noise @ noise.conj().T / max(noise.shape[1], 1)
    level = covariance.trace().real / n_coils
    weakest = np.linalg.eigvalsh(covariance)[0]
    if noise.shape[1] < 2 * n_coils or not weakest > 1e-6 * level:
        raise DataError(
            f"{path} has a noise scan of {noise.shape[1]} samples that does not separate its "
            f"{n_coils} coils; remove the noise scan, or coils without signal"
        )
    return np.linalg.inv(np.linalg.cholesky(covariance / level)).astype(np.complex64)


def sort_out(
    flags: Shaped[np.ndarray, " line"], left_out: Mapping[str, int]
) -> tuple[Bool[np.ndarray, " line"], str]:
    """Return the indices of lines for images, and a sentence on the others.

    `left_out` has the flags of lines for other purposes, by their names in the sentence.
    """
    is_image = np.ones(len(flags), dtype=bool)
    counts = []
    for word, bits in left_out.items():
        data = is_image & ((flags & np.uint64(bits)) != 0)
        is_image &= ~data
        counts += [f"{int(data.sum())} {word}"] if data.any() else []
    return is_image, f"left out {', '.join(counts)} lines" if counts else ""


def check_trajectory(path: Path, trajectory: str, *, is_deep: bool) -> None:
    """Raise an error for an encoding that is not two-dimensional Cartesian."""
    if trajectory == "epi":
        raise DataError(
            f"{path} is an echo-planar measurement, whose lines need a phase correction that "
            "kscout does not support; correct and sort them first"
        )
    if trajectory != "cartesian":
        raise DataError(
            f"{path} was measured along a trajectory that is {trajectory}; kscout "
            "acquires Cartesian columns: grid it first"
        )
    if is_deep:
        raise DataError(
            f"{path} encodes two phase directions (three-dimensional); transform it along one of "
            "them, and import its slices as an array with --axes"
        )
