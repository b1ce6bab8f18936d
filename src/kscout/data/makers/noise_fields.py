"""Random fields that do not depend on the grid: the same anatomy at every matrix size.

Smooth fields are cubic B-splines on a lattice of normal numbers. They are summed by element-wise
float32 arithmetic only, no BLAS and no transcendental function, so that warped shapes are
identical on every machine. Textures are synthesized in the spatial-frequency domain.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32, Int
from scipy import fft

Field = Float32[np.ndarray, "row col"]

# Mean square of the cubic B-spline basis over one cell: the variance after one axis.
_SPLINE_POWER = 0.479


def spline_weights(
    position: Float32[np.ndarray, " point"],
) -> tuple[Int[np.ndarray, " point"], Float32[np.ndarray, "4 point"]]:
    """Return the first of the four knots at each position (in knots), and the knots' weights."""
    knot = np.floor(position).astype(np.intp)
    t = position - knot.astype(np.float32)
    s = 1.0 - t
    inner = [3.0 * u * u * u - 6.0 * u * u + 4.0 for u in (t, s)]
    weights = np.stack([s * s * s, *inner, t * t * t])
    return knot, (weights / 6.0).astype(np.float32)


def _blend_rows(
    coefficients: Float32[np.ndarray, "knot other"],
    knot: Int[np.ndarray, " point"],
    weights: Float32[np.ndarray, "4 point"],
) -> Float32[np.ndarray, "point other"]:
    blended = coefficients[knot] * weights[0][:, None]
    for tap in range(1, 4):
        part = coefficients[knot + tap]
        part *= weights[tap][:, None]
        blended += part
    return blended


@final
@dataclass(frozen=True)
class SmoothNoise:
    """A smooth random function over a cube, unit variance, cut into planes."""

    coefficients: Float32[np.ndarray, "depth row col"]

    @classmethod
    def draw(cls, rng: np.random.Generator, cells: int, depth_cells: int = 1) -> "SmoothNoise":
        """Draw a field of `cells` lattice cells in the plane and `depth_cells` along the depth.

        A cell is about 1.7 times the correlation length.
        """
        shape = (depth_cells + 3, cells + 3, cells + 3)
        values = rng.standard_normal(shape, dtype=np.float32)
        return cls(values * np.float32(_SPLINE_POWER**-1.5))

    def plane(self, n_points: int, depth: float = 0.5) -> Field:
        """Return the plane at a depth in [0, 1], on `n_points` rows and columns."""
        n_depth, n_knots = self.coefficients.shape[0] - 3, self.coefficients.shape[1] - 3
        at = np.array([min(max(depth, 0.0), 1.0 - 1e-6) * n_depth], dtype=np.float32)
        knot, weight = spline_weights(at)
        layers = self.coefficients[knot[0] : knot[0] + 4]
        plane = (layers * weight[:, 0][:, None, None]).sum(axis=0)
        points = (np.arange(n_points, dtype=np.float32) + 0.5) * np.float32(n_knots / n_points)
        knots, weights = spline_weights(points)
        # Columns first, on the small array, so that the large result is contiguous by rows.
        columns = _blend_rows(np.ascontiguousarray(plane.T), knots, weights)
        return _blend_rows(np.ascontiguousarray(columns.T), knots, weights)


@final
@dataclass(frozen=True)
class Band:
    """A band of spatial frequencies in cycles per field of view, with an optional direction."""

    center: float
    width: float
    angle: float | None = None
    """Direction of the wave vector, in radians from the column axis."""
    sharpness: float = 1.0
    """Concentration of wave directions."""


def band_texture(rng: np.random.Generator, n_points: int, band: Band) -> Field:
    """Draw a texture of unit variance whose spatial frequencies lie in the band.

    The random numbers only depend on the band, so a finer grid shows the same texture.
    """
    reach = math.ceil(band.center + 3.0 * band.width)
    ky = np.arange(-reach, reach + 1, dtype=np.float32)[:, None]
    kx = np.arange(0, reach + 1, dtype=np.float32)[None, :]
    radius = np.sqrt(kx * kx + ky * ky)
    gain = np.exp(-0.5 * ((radius - band.center) / band.width) ** 2)
    if band.angle is not None:
        gain *= np.exp(band.sharpness * (np.cos(2.0 * (np.arctan2(ky, kx) - band.angle)) - 1.0))
    gain[reach, 0] = 0.0
    parts = rng.standard_normal((2, *gain.shape), dtype=np.float32)
    # Frequencies above the grid's limit are dropped, which avoids aliasing.
    keep = min(reach, (n_points - 1) // 2)
    inner = slice(reach - keep, reach + keep + 1)
    weights = np.full(gain.shape[1], 2.0, dtype=np.float32)
    weights[0] = 1.0
    power = float((gain * gain * weights).sum()) * 2.0
    block = (parts[0] + 1j * parts[1])[inner, : keep + 1] * gain[inner, : keep + 1]
    spectrum = np.zeros((n_points, n_points // 2 + 1), dtype=np.complex64)
    spectrum[: keep + 1, : keep + 1] = block[keep:]
    spectrum[-keep:, : keep + 1] = block[:keep]
    texture = fft.irfft2(spectrum, s=(n_points, n_points), norm="forward")
    return (texture * np.float32(power**-0.5)).astype(np.float32)
