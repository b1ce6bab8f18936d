"""From tissue to MR images: signals, slice planes, shading, resolution limit, noise and scale."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Complex64, Float32, Float64
from scipy import fft

from kscout.data.formats import Stack
from kscout.data.makers import load_table
from kscout.data.makers.coils import Axis, Receiver
from kscout.data.makers.drawing import Grid
from kscout.data.makers.noise_fields import Field, SmoothNoise
from kscout.errors import ConfigError

MIN_SIZE, MAX_SIZE = 64, 512
MAX_SLICES = 1000


def check_request(n_slices: int, size: int) -> None:
    """Raise an error for unsupported sizes."""
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ConfigError(
            f"found size {size}, expected {MIN_SIZE} to {MAX_SIZE} pixels; change --size"
        )
    if not 1 <= n_slices <= MAX_SLICES:
        raise ConfigError(
            f"found {n_slices} slices per volume, expected 1 to {MAX_SLICES}; change --slices"
        )


def rotation(turns: tuple[float, float, float]) -> Float64[np.ndarray, "3 3"]:
    """Return the rotation by small angles (radians) about the first, second and third axis."""
    matrix = np.eye(3)
    for axis, angle in enumerate(turns):
        a, b = (axis + 1) % 3, (axis + 2) % 3
        step = np.eye(3)
        step[a, a] = step[b, b] = math.cos(angle)
        step[a, b], step[b, a] = -math.sin(angle), math.sin(angle)
        matrix = step @ matrix
    return matrix


@final
@dataclass(frozen=True)
class Warp:
    """Smooth random warp of space, coarse and fine, which differs between subjects."""

    layers: tuple[tuple[float, list[SmoothNoise]], ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, layers: tuple[tuple[float, int, int], ...]) -> "Warp":
        """Draw one field per axis for each layer of (amplitude in mm, cells, depth cells)."""
        return cls(
            tuple(
                (amplitude, [SmoothNoise.draw(rng, cells, deep) for _ in range(3)])
                for amplitude, cells, deep in layers
            )
        )

    def apply(self, grid: Grid, depth: float) -> Grid:
        """Warp a slice plane; `depth` in [0, 1] is its position in the slab."""
        n_points = grid.x.shape[0]
        for amplitude, fields in self.layers:
            x, y, z = (np.float32(amplitude) * field.plane(n_points, depth) for field in fields)
            grid = grid.moved(x, y, z)
        return grid


def plane_grid(
    n_points: int,
    field_of_view_mm: float,
    axes: Float64[np.ndarray, "3 3"],
    origin: Float64[np.ndarray, " 3"],
) -> Grid:
    """Return the body coordinates of a square slice plane around `origin`.

    The columns of `axes` are the body directions of the image's columns, rows and depth.
    """
    line = ((np.arange(n_points) + 0.5) / n_points - 0.5) * field_of_view_mm
    across, down = line[None, :], line[:, None]
    x, y, z = (
        (origin[i] + axes[i, 0] * across + axes[i, 1] * down).astype(np.float32) for i in range(3)
    )
    return Grid(x, y, z, field_of_view_mm / n_points)


def examine(
    rng: np.random.Generator,
    n_slices: int,
    size: int,
    draw_slice: Callable[[float, int], Field],
    *,
    receiver: Receiver | None = None,
    axis: Axis = "slices",
) -> Stack | Complex64[np.ndarray, "slice coil row col"]:
    """Draw noise level, coil shading and every slice of an examination, and return its images.

    `draw_slice` draws the slice at a position in [0, 1] on a grid of given points per side.
    """
    check_request(n_slices, size)
    noise = math.exp(rng.uniform(math.log(0.008), math.log(0.03)))
    # Points per side on which a slice is drawn before the crop in k-space.
    n_points = 2 * size if size <= 160 else 2 * (3 * size // 4)
    shading = _draw_shading(rng, n_points)
    clean = np.empty((n_slices, size, size), dtype=np.float32)
    for index in range(n_slices):
        place = (index + 0.5 + rng.uniform(-0.2, 0.2)) / n_slices
        clean[index] = crop_resolution(draw_slice(place, n_points) * shading, size)
    if receiver is not None:
        return receiver.receive(rng, clean, noise, axis)
    return add_noise(rng, clean, noise)


def _draw_shading(rng: np.random.Generator, n_points: int) -> Field:
    line = ((np.arange(n_points) + 0.5) / n_points * 2.0 - 1.0).astype(np.float32)
    x, y = line[None, :], line[:, None]
    scales = np.array([0.16, 0.16, 0.10, 0.10, 0.10])
    a, b, c, d, e = (scales * rng.standard_normal(5)).astype(np.float32)
    log_shading = a * x + b * y + c * x * y + d * (x * x - 0.3) + e * (y * y - 0.3)
    return np.exp(log_shading).astype(np.float32)


def add_noise(rng: np.random.Generator, clean: Stack, noise: float) -> Stack:
    """Return `|image + complex normal noise|`, scaled so that the 99.8th percentile is one."""
    level = np.float32(noise * float(np.percentile(clean, 99.5)))
    real, imaginary = rng.standard_normal((2, *clean.shape), dtype=np.float32) * level
    noisy = np.sqrt((clean + real) ** 2 + imaginary**2)
    return (noisy / np.float32(np.percentile(noisy, 99.8))).astype(np.float32)


def crop_resolution(image: Field, size: int) -> Float32[np.ndarray, "{size} {size}"]:
    """Crop k-space to `size` by `size` samples, with the blur and ringing of such a scan."""
    n_points = image.shape[0]
    if n_points == size:
        return image
    kspace = fft.rfft2(image, norm="forward")
    above, below = (size + 1) // 2, size // 2
    rows = np.concatenate([kspace[:above], kspace[n_points - below :]])
    cropped = fft.irfft2(rows[:, : size // 2 + 1], s=(size, size), norm="forward")
    return np.asarray(cropped, dtype=np.float32)


@final
@dataclass(frozen=True)
class Tissue:
    """Proton density (1 is water) and relaxation times of one tissue at about 3 tesla."""

    density: float
    t1_ms: float
    t2_ms: float
    is_fat: bool = False
    """Whether fat suppression reduces the signal."""


@final
@dataclass(frozen=True)
class Sequence:
    """Timing of one pulse sequence; an inversion time makes it an inversion recovery."""

    repetition_ms: float
    echo_ms: float
    fat_gain: float = 1.0
    """Fraction of the signal of fat that remains."""
    inversion_ms: float | None = None


_NUMBERS = load_table("tissue.toml")
TISSUES = {name: Tissue(**numbers) for name, numbers in _NUMBERS["tissues"].items()}
SEQUENCES = {name: Sequence(**numbers) for name, numbers in _NUMBERS["sequences"].items()}


def signal(tissue: Tissue, sequence: Sequence) -> float:
    """Return the magnitude of a tissue.

    Spin echo: `density (1 - exp(-TR/T1)) exp(-TE/T2)`; inversion recovery:
    `density |1 - 2 exp(-TI/T1) + exp(-TR/T1)| exp(-TE/T2)`.
    """
    remaining = math.exp(-sequence.repetition_ms / tissue.t1_ms)
    if sequence.inversion_ms is None:
        recovered = 1.0 - remaining
    else:
        inverted = 2.0 * math.exp(-sequence.inversion_ms / tissue.t1_ms)
        recovered = abs(1.0 - inverted + remaining)
    decayed = math.exp(-sequence.echo_ms / tissue.t2_ms)
    return tissue.density * recovered * decayed * (sequence.fat_gain if tissue.is_fat else 1.0)


def draw_signals(
    rng: np.random.Generator, sequence: str, *, spread: float = 0.07
) -> dict[str, float]:
    """Draw every tissue's signal for one subject, with small deviations from the table."""
    factors = np.exp(spread * rng.standard_normal((len(TISSUES), 3)))
    return {
        name: signal(
            Tissue(t.density * f[0], t.t1_ms * f[1], t.t2_ms * f[2], t.is_fat), SEQUENCES[sequence]
        )
        for (name, t), f in zip(TISSUES.items(), factors.tolist(), strict=True)
    }
