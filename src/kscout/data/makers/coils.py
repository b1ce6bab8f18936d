"""Receive coils around a subject: sensitivities by Biot and Savart's law, phase, complex noise.

Lengths are in halves of the field of view. Loops are on a cylinder along the axis of the magnet,
and a coil measures the transverse part of its field, B_1 - i B_2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Complex64, Float32

from kscout.data.formats import Stack
from kscout.data.makers.noise_fields import SmoothNoise
from kscout.data.transforms import root_sum_of_squares, to_kspace
from kscout.errors import ConfigError

Axis = Literal["slices", "rows"]
"""Axis of the cylinder: across the slices, as for axial ones, or along their rows."""
Maps = Complex64[np.ndarray, "coil row col"]

MOST_COILS = 64
_PER_RING = 8
_RADIUS = 1.4
_OVERLAP = 1.25
"""Ratio of the diameter of loops to their spacing in the ring."""
_WIRE = 0.12
"""Thickness of the wire, which keeps fields finite in the corners of an image."""
_DEPTH = 0.35
"""Distance of the first and last slice from the middle of the cylinder."""
_N_SEGMENTS = 24


@final
@dataclass(frozen=True)
class Receiver:
    """Simulated reception: a number of coils, the subject's smooth phase, and noise."""

    n_coils: int
    """A single coil has uniform sensitivity."""
    has_phase: bool = False
    """Whether the subject has a smooth phase in addition to that of the coils."""
    snr: float | None = None
    """Ratio of bright tissue to the standard deviation of noise, in the middle; None: random."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_coils <= MOST_COILS:
            raise ConfigError(
                f"--coils is {self.n_coils}; it must be 1 or more, up to {MOST_COILS}"
            )
        if self.snr is not None and not 0.1 <= self.snr <= 1e6:
            raise ConfigError(f"--snr is {self.snr}; it must be 0.1 or more, up to 1e6")

    def receive(
        self, rng: np.random.Generator, clean: Stack, noise: float, axis: Axis
    ) -> Complex64[np.ndarray, "slice coil row col"]:
        """Return noisy k-space; the 99.8th percentile of its combined images is one."""
        size = clean.shape[-1]
        array = CoilArray.draw(rng, self.n_coils, axis)
        phase = _draw_phase(rng, size) if self.has_phase else None
        coil_images = np.empty((len(clean), self.n_coils, size, size), dtype=np.complex64)
        for index, image in enumerate(clean):
            place = (index + 0.5) / len(clean)
            turned = image * phase(place) if phase else image
            coil_images[index] = turned * array.maps(size, place)
        # Maps are one in the middle, so this is bright tissue there.
        level = np.percentile(clean, 99.5) * (noise if self.snr is None else 1 / self.snr)
        drawn = rng.standard_normal((2, *coil_images.shape), dtype=np.float32) * np.float32(level)
        coil_images += drawn[0] + 1j * drawn[1]
        scale = np.percentile(root_sum_of_squares(coil_images), 99.8)
        return to_kspace(coil_images / np.float32(scale))


@final
@dataclass(frozen=True)
class CoilArray:
    """Loops on a cylinder, in rings of up to eight."""

    angles: Float32[np.ndarray, " coil"]
    heights: Float32[np.ndarray, " coil"]
    """Position along the axis."""
    width: float
    """Radius of a loop."""
    radius: float
    """Radius of the cylinder."""
    axis: Axis

    @classmethod
    def draw(cls, rng: np.random.Generator, n_coils: int, axis: Axis) -> "CoilArray":
        radius = _RADIUS * math.exp(0.05 * rng.standard_normal())
        turn = rng.uniform(0, 2 * math.pi)
        n_rings = math.ceil(n_coils / _PER_RING)
        ring, place = np.divmod(np.arange(n_coils), math.ceil(n_coils / n_rings))
        per_ring = np.bincount(ring)[ring]
        width = min(_OVERLAP * math.pi * radius / per_ring.max(), 0.8 * radius)
        angles = turn + 2 * math.pi * (place + 0.5 * (ring % 2)) / per_ring
        heights = (ring - (n_rings - 1) / 2) * 1.6 * width
        return cls(angles.astype(np.float32), heights.astype(np.float32), width, radius, axis)

    def maps(self, size: int, place: float) -> Maps:
        """Return the sensitivities in a slice at a place in [0, 1].

        Their root sum of squares is one in the middle of the field of view.
        """
        if len(self.angles) == 1:
            return np.ones((1, size, size), dtype=np.complex64)
        depth = (2 * place - 1) * _DEPTH
        maps = np.stack([self._field(coil, size, depth) for coil in range(len(self.angles))])
        middle = maps[:, size // 2, size // 2]
        return maps / np.float32(np.linalg.norm(middle))

    def _field(self, coil: int, size: int, depth: float) -> Complex64[np.ndarray, "row col"]:
        """Sum what the segments of a loop add to the transverse field."""
        line = ((np.arange(size) + 0.5) / size * 2 - 1).astype(np.float32)
        across, down = line[None, None, :], line[None, :, None]
        deep = np.full((1, 1, 1), depth, dtype=np.float32)
        second, along = (down, deep) if self.axis == "slices" else (deep, down)
        wire, pieces = self._loop(coil)
        first, second, along = (
            values - part[:, None, None]
            for values, part in zip((across, second, along), wire, strict=True)
        )
        l_first, l_second, l_along = (part[:, None, None] for part in pieces)
        near = first * first + second * second + along * along + np.float32(_WIRE**2)
        weight = near**-1.5
        field = np.empty((size, size), dtype=np.complex64)
        field.real = ((l_second * along - l_along * second) * weight).sum(axis=0)
        field.imag = -((l_along * first - l_first * along) * weight).sum(axis=0)
        return field

    def _loop(
        self, coil: int
    ) -> tuple[Float32[np.ndarray, "3 segment"], Float32[np.ndarray, "3 segment"]]:
        """Return positions and directions of the segments of a loop, along the three axes."""
        cos, sin = math.cos(self.angles[coil]), math.sin(self.angles[coil])
        turn = 2 * math.pi * np.arange(_N_SEGMENTS) / _N_SEGMENTS
        around, along = self.width * np.cos(turn), self.width * np.sin(turn)
        where = [
            self.radius * cos - sin * around,
            self.radius * sin + cos * around,
            self.heights[coil] + along,
        ]
        pieces = [sin * along, -cos * along, around]
        return np.stack(where).astype(np.float32), np.stack(pieces).astype(np.float32)


def _draw_phase(
    rng: np.random.Generator, size: int
) -> Callable[[float], Complex64[np.ndarray, "row col"]]:
    """Draw a ramp of up to half a column or row of k-space, and smooth hills: a factor by place."""
    down, across = rng.uniform(-0.5, 0.5, 2).astype(np.float32)
    hills = SmoothNoise.draw(rng, 3, 2)
    line = ((np.arange(size) + 0.5) / size * 2 - 1).astype(np.float32) * np.float32(math.pi)
    ramp = down * line[:, None] + across * line
    return lambda place: np.exp(1j * (ramp + np.float32(0.8) * hills.plane(size, place)))
