"""Sensitivities that were measured: 13 coils around a brain, of low resolution.

`lab/brain13_maps.py` made their file from k-space that comes with pyqmri 1.3.0; NOTICE
beside it has its license. They are virtual coils, those of most energy first.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Complex64

FILE = Path(__file__).with_name("brain13_maps.npz")
N_MEASURED = 13
_MOST_ZOOM, _MOST_SHIFT = 1.15, 0.1
"""How much larger or smaller, and how far in halves of the field of view, a head may lie."""


@cache
def measured_cells() -> Complex64[np.ndarray, "coil cell cell"]:
    """Return the maps as they are stored."""
    with np.load(FILE) as file:
        parts = file["maps"].astype(np.float32)
    return np.asarray(parts[..., 0] + 1j * parts[..., 1], dtype=np.complex64)


@final
@dataclass(frozen=True)
class MeasuredArray:
    """The first of the measured coils, turned, magnified and moved."""

    n_coils: int
    turn: float
    zoom: float
    shift: tuple[float, float]

    @classmethod
    def draw(cls, rng: np.random.Generator, n_coils: int) -> "MeasuredArray":
        """Lay a head into the coils at random."""
        down, across = rng.uniform(-_MOST_SHIFT, _MOST_SHIFT, 2).tolist()
        zoom = _MOST_ZOOM ** rng.uniform(-1, 1)
        return cls(n_coils, rng.uniform(0, 2 * math.pi), zoom, (down, across))

    def maps(self, size: int, place: float) -> Complex64[np.ndarray, "coil row col"]:
        """Return sensitivities of unit norm over coils, the same in every slice.

        Args:
            size: rows and columns.
            place: of the slice, which was measured at one place alone.
        """
        # Late: workers that draw knees without coils need not load it.
        from scipy import ndimage

        cells = measured_cells()[: self.n_coils]
        n_cells = cells.shape[-1]
        line = (np.arange(size) + 0.5) / size * 2 - 1
        down, across = (x * self.zoom for x in np.meshgrid(line, line, indexing="ij"))
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        turned = (cos * down - sin * across, sin * down + cos * across)
        at = [(x + d + 1) / 2 * n_cells - 0.5 for x, d in zip(turned, self.shift, strict=True)]
        found = [ndimage.map_coordinates(cell, at, order=3, mode="nearest") for cell in cells]
        maps = np.stack(found)
        norm = np.linalg.norm(maps, axis=0)
        return (maps / np.maximum(norm, 1e-6)).astype(np.complex64)
