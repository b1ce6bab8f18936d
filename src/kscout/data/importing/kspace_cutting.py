"""Cutting k-space: in the image, where rows and columns are pixels, or about its center."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Complex64

from kscout.data.formats.raw import RawScan, Slices
from kscout.data.importing.cutting import Size, sides
from kscout.data.importing.settings import ImportSettings, told
from kscout.data.manifest import Geometry
from kscout.data.transforms import to_images, to_kspace
from kscout.errors import DataError


@final
@dataclass(frozen=True)
class Cutting:
    """What becomes of k-space of one size."""

    size: Size
    """Rows and columns in the file."""
    kept: Size
    """Pixels that are kept in the middle of the image."""
    stored: Size
    """Rows and columns about the center of the k-space of those, or zero-padded."""

    @classmethod
    def plan(cls, scan: RawScan, path: Path, settings: ImportSettings) -> "Cutting":
        """Decide what is kept of a scan; without a wish all but the readout's oversampling."""
        n_rows, n_cols = size = scan.shape[2:]
        wanted = settings.crop if settings.crop is not None else settings.size
        kept = cls.of_readout(scan).kept if wanted is None else sides(wanted)
        if kept[0] > n_rows or kept[1] > n_cols:
            raise DataError(
                f"{path} has k-space of {n_rows}x{n_cols}, smaller than --crop {told(kept)}; lower "
                "it, or zero-pad k-space with --resize"
            )
        stored = kept if settings.resize is None else sides(settings.resize)
        return cls(size, kept, stored)

    @classmethod
    def of_readout(cls, scan: RawScan) -> "Cutting":
        """Remove the readout's oversampling, and nothing else."""
        n_rows, n_cols = scan.shape[2:]
        kept = (scan.n_readout or n_rows, n_cols)
        return cls((n_rows, n_cols), kept, kept)

    @property
    def is_computed(self) -> bool:
        """Whether the phase direction is cut, so that no scanner measured the columns."""
        return self.kept[1] != self.size[1]

    def apply(self, kspace: Slices) -> Complex64[np.ndarray, "slice coil stored_row stored_col"]:
        """Return the k-space that is stored, whose images are as bright as before."""
        for axis, have, keep in zip((-2, -1), self.size, self.kept, strict=True):
            if have != keep:
                images = _middle(to_images(kspace, axes=(axis,)), axis, keep)
                kspace = to_kspace(images, axes=(axis,))
        for axis, have, keep in zip((-2, -1), self.kept, self.stored, strict=True):
            if have != keep:
                kspace = _middle(kspace, axis, keep) * np.float32(np.sqrt(keep / have))
        return np.ascontiguousarray(kspace)

    def columns(self, filled: Bool[np.ndarray, " col"]) -> Bool[np.ndarray, " stored_col"]:
        """Return which stored columns hold anything, by which columns of the file do."""
        if self.is_computed:
            filled = np.ones(self.kept[1], dtype=bool)
        return _middle(filled, -1, self.stored[1])

    def geometry(self, scan: RawScan) -> Geometry:
        """Return where the pixels lay, for the manifest."""
        before, after = scan.spacing_mm, None
        if before is not None:
            rows, cols = (
                step * kept / stored
                for step, kept, stored in zip(before, self.kept, self.stored, strict=True)
            )
            after = (rows, cols)
        return Geometry(
            self.size,
            before,
            after,
            kept=self.kept,
            notes=scan.notes or None,
            of_images=scan.of_images or None,
            is_turned=scan.is_turned or None,
        )


def _middle(values: np.ndarray, axis: int, length: int) -> np.ndarray:
    """Keep so much of an axis about its center, index `size // 2`, or surround it with zeros."""
    have = values.shape[axis]
    first = have // 2 - length // 2
    taken = np.arange(max(first, 0), min(first + length, have))
    values = np.take(values, taken, axis=axis)
    margins = [(0, 0)] * values.ndim
    margins[axis] = (max(-first, 0), length - len(taken) - max(-first, 0))
    return np.pad(values, margins) if length > len(taken) else values
