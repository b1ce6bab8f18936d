"""Cropping k-space: in the image, in units of pixels, or around its center."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Complex64

from kscout.config.bounds import Size, sides
from kscout.data.formats.raw import RawScan, Slices
from kscout.data.importing.settings import ImportSettings, size_text
from kscout.data.manifest import Geometry
from kscout.data.transforms import to_images, to_kspace
from kscout.errors import DataError


@final
@dataclass(frozen=True)
class Cutting:
    """The cropping of k-space of one size."""

    size: Size
    """Rows and columns in the file."""
    kept: Size
    """Pixels of the middle of the image that are retained."""
    stored: Size
    """Rows and columns of k-space in the store, cropped around its center or zero-padded."""

    @classmethod
    def plan(cls, scan: RawScan, path: Path, settings: ImportSettings) -> "Cutting":
        """Compute the cropping of a scan; by default only the readout's oversampling is removed."""
        n_rows, n_cols = size = scan.shape[2:]
        wanted = settings.crop if settings.crop is not None else settings.size
        kept = (scan.n_readout or n_rows, n_cols) if wanted is None else sides(wanted)
        if kept[0] > n_rows or kept[1] > n_cols:
            option = "--size" if settings.crop is None else "--crop"
            raise DataError(
                f"{path} has k-space of {n_rows}x{n_cols}, smaller than {option} "
                f"{size_text(kept)}; lower it, or zero-pad k-space with --resize"
            )
        stored = kept if settings.resize is None else sides(settings.resize)
        return cls(size, kept, stored)

    @property
    def is_computed(self) -> bool:
        """Whether the phase direction is cropped, so that columns are computed, not measured."""
        return self.kept[1] != self.size[1]

    def apply(self, kspace: Slices) -> Complex64[np.ndarray, "slice coil stored_row stored_col"]:
        """Return the k-space for the store; the brightness of images is unchanged."""
        for axis, have, keep in zip((-2, -1), self.size, self.kept, strict=True):
            if have != keep:
                images = _middle(to_images(kspace, axes=(axis,)), axis, keep)
                kspace = to_kspace(images, axes=(axis,))
        for axis, have, keep in zip((-2, -1), self.kept, self.stored, strict=True):
            if have != keep:
                kspace = _middle(kspace, axis, keep) * np.float32(np.sqrt(keep / have))
        return np.ascontiguousarray(kspace)

    def columns(self, filled: Bool[np.ndarray, " col"]) -> Bool[np.ndarray, " stored_col"]:
        """Return the nonzero stored columns, from the nonzero columns of the file."""
        if self.is_computed:
            filled = np.ones(self.kept[1], dtype=bool)
        return _middle(filled, -1, self.stored[1])

    def geometry(self, scan: RawScan) -> Geometry:
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
        )


def _middle(values: np.ndarray, axis: int, length: int) -> np.ndarray:
    """Crop an axis to `length` around its center, index `size // 2`, or zero-pad it."""
    have = values.shape[axis]
    first = have // 2 - length // 2
    taken = np.arange(max(first, 0), min(first + length, have))
    values = np.take(values, taken, axis=axis)
    margins = [(0, 0)] * values.ndim
    margins[axis] = (max(-first, 0), length - len(taken) - max(-first, 0))
    return np.pad(values, margins) if length > len(taken) else values
