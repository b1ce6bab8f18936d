"""The anatomy of one procedural head: hulls of the brain's parts and the folds of its cortex.

Body axes in millimeters from the middle of the brain: x to the side, y to the back, z up. Sulci
are the zero set of band-pass noise, evaluated at the surface point along the surface normal:
sheets that start at the surface, bend a little, and end at a random depth.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float32
from scipy import fft, ndimage

from kscout.data.makers import load_table
from kscout.data.makers.drawing import Grid, Point, ellipsoid, join, join_all, meet, parts_of
from kscout.data.makers.noise_fields import Field, SmoothNoise
from kscout.data.makers.scanner import Warp
from kscout.data.makers.subject import choice, drawn, factor, normals, smooth, uniform

_NUMBERS = load_table("brain.toml")
PARTS = parts_of(_NUMBERS["parts"])
Spot = tuple[Point, float]

_LATTICE_MM = 4.0
_LATTICE_SHAPE = (56, 48, 56)
"""Knots of the lattice of folds along y, z and x."""
_AXIS_HALF_LENGTH, _AXIS_X, _AXIS_Z = 46.0, 27.0, 6.0
"""The line inside each hemisphere that is the origin of surface normals."""


def draw_folds(
    rng: np.random.Generator, wavelength_mm: float
) -> Float32[np.ndarray, "lengthwise upward sideways"]:
    """Draw band-pass noise of unit variance on the lattice."""
    noise = rng.standard_normal(_LATTICE_SHAPE, dtype=np.float32)
    frequencies = np.meshgrid(
        *(fft.fftfreq(n) for n in _LATTICE_SHAPE[:2]),
        fft.rfftfreq(_LATTICE_SHAPE[2]),
        indexing="ij",
    )
    radius = np.sqrt(sum(f * f for f in frequencies)) / _LATTICE_MM * wavelength_mm
    gain = np.exp(-0.5 * ((radius - 1.0) / 0.28) ** 2).astype(np.float32)
    folds = fft.irfftn(fft.rfftn(noise) * gain, s=_LATTICE_SHAPE)
    return (folds / folds.std()).astype(np.float32)


def _draw_findings(rng: np.random.Generator, _: object) -> tuple[tuple[Spot, ...], Spot | None]:
    """Draw lesions and, rarely, a tumor: middle and size of each."""
    n_lesions, has_tumor = int(min(rng.poisson(0.9), 6)), rng.uniform() < 0.1
    spots = rng.uniform((-34.0, -45.0, 0.0), (34.0, 50.0, 34.0), (7, 3)).tolist()
    sizes = rng.uniform(1.2, 3.6, 7).tolist()
    lesions = tuple(zip(spots, sizes, strict=True))[:n_lesions]
    return lesions, (spots[6], 4.0 * sizes[6] + 3.0) if has_tumor else None


@final
@dataclass(frozen=True)
class Brain:
    """Parameters of one subject, shared by all its slices. Lengths in millimeters."""

    contrast: str = choice(_NUMBERS["contrasts"])
    findings: tuple[tuple[Spot, ...], Spot | None] = drawn(_draw_findings)
    field_of_view: float = uniform(208.0, 240.0)
    width: float = factor(0.03)
    """Relative to the height of the head."""
    length: float = factor(0.03)
    scalp: float = uniform(4.5, 8.5)
    skull: float = uniform(5.0, 8.0)
    csf: float = uniform(0.8, 3.2)
    cortex: float = uniform(2.8, 3.5)
    sulcus_depth: float = uniform(15.0, 20.0)
    sulcus_width: float = uniform(0.15, 0.8)
    ventricles: float = factor(0.25)
    folia_mm: float = uniform(3.8, 4.8)
    folds: Float32[np.ndarray, "lengthwise upward sideways"] = drawn(
        lambda rng, _: draw_folds(rng, rng.uniform(18.5, 22.0))
    )
    bends: tuple[SmoothNoise, ...] = drawn(
        lambda rng, _: tuple(SmoothNoise.draw(rng, 12, 6) for _ in range(3))
    )
    depths: SmoothNoise = smooth(11, 6)
    tissue_shade: SmoothNoise = smooth(9, 5)
    warp: Warp = drawn(lambda rng, _: Warp.draw(rng, ((2.4, 3, 2), (0.9, 9, 5))))
    pose: tuple[float, float, float] = normals((0.06, 0.07), (0.0, 0.03), (0.0, 0.05))
    shift: tuple[float, float] = normals((0.0, 2.5), (-4.0, 3.0))


def mirrored(grid: Grid) -> Grid:
    """Mirror one side onto the other, so that one shape describes left and right."""
    return replace(grid, x=np.abs(grid.x))


@final
@dataclass(frozen=True)
class Hulls:
    """Signed distances of the head's large parts over one slice."""

    head: Field
    cavity: Field
    """The inside of the skull."""
    cerebrum: Field
    core: Field
    """The deep middle, where no fissure parts the hemispheres."""
    cerebellum: Field
    stem: Field


def _cerebrum(grid: Grid) -> Field:
    """Return both hemispheres without the fissure between them."""
    side = mirrored(grid)
    # The base rises from the frontal floor over the middle to the tent above the cerebellum.
    floor = -20.0 + 4.0 * np.clip((grid.y - 5.0) * np.float32(1.0 / 40.0), 0.0, 1.0)
    vault = ellipsoid(grid, (0.0, 0.0, 6.0), (66.0, 84.0, 62.0))
    vault = meet(vault, (floor - grid.z).astype(np.float32), 8.0)
    return join(vault, ellipsoid(side, (39.0, -6.0, -22.0), (23.0, 40.0, 23.0)), 3.0)


def find_hulls(grid: Grid, brain: Brain) -> Hulls:
    """Return the large shapes over a slice."""
    side = mirrored(grid)
    both = _cerebrum(grid)
    core = ellipsoid(grid, (0.0, 4.0, 8.0), (31.0, 41.0, 23.0))
    parted = meet(both, np.float32(0.5 + 0.4 * brain.csf) - side.x, 4.0)
    cerebellum = join_all(PARTS["cerebellum"], side, 5.0)
    stem = join_all(PARTS["stem"], side, 6.0)
    # The outline continues downward as a cylinder: scalp, jaw muscles and neck.
    height = np.where(grid.z < 5.0, 5.0 + 0.3 * (grid.z - 5.0), grid.z).astype(np.float32)
    down = replace(grid, z=height)
    extra = brain.csf + brain.skull + brain.scalp
    head = ellipsoid(down, (0.0, 0.0, 6.0), (66.0 + extra, 84.0 + extra, 62.0 + extra))
    head = join(head, ellipsoid(grid, (0.0, -50.0, -64.0), (60.0, 56.0, 58.0)), 8.0)
    cavity = join(join(both, cerebellum, 12.0), join(stem, core, 12.0), 12.0)
    # The frontal lobes touch the floor of the skull with hardly any fluid below them.
    low = np.clip((-8.0 - grid.z) * np.float32(1.0 / 8.0), 0.0, 1.0)
    frontal_base = low * np.clip((10.0 - grid.y) * np.float32(1.0 / 20.0), 0.0, 1.0)
    return Hulls(
        head=head,
        cavity=(cavity - np.float32(brain.csf) * (1.0 - 0.8 * frontal_base)).astype(np.float32),
        cerebrum=join(parted, core, 4.0),
        core=core,
        cerebellum=cerebellum,
        stem=stem,
    )


def _bent(grid: Grid, brain: Brain, depth_mm: Field, level: float) -> Grid:
    """Displace points by smooth noise that grows with depth, so that sulci are curved."""
    n_points = grid.x.shape[0]
    gain = 1.0 + 0.22 * np.clip(depth_mm, 0.0, 25.0)
    x, y, z = (gain * noise.plane(n_points, level) for noise in brain.bends)
    return grid.moved(*(np.asarray(part, np.float32) for part in (x, y, z)))


def fold_field(grid: Grid, brain: Brain, depth_mm: Field, level: float) -> tuple[Field, Field]:
    """Return the noise whose zero set is the middle of sulci, and the distance from the axis."""
    bent = _bent(grid, brain, depth_mm, level)
    # A soft sign keeps the field continuous across the midline inside the core.
    flank = bent.x / np.sqrt(bent.x * bent.x + 9.0)
    foot_x = np.float32(_AXIS_X) * flank
    foot_y = np.clip(bent.y, -_AXIS_HALF_LENGTH, _AXIS_HALF_LENGTH)
    dx, dy, dz = bent.x - foot_x, bent.y - foot_y, bent.z - np.float32(_AXIS_Z)
    radius = np.sqrt(dx * dx + dy * dy + dz * dz + 9.0)
    scale = (radius + np.maximum(depth_mm, 0.0)) / radius
    points = (
        (foot_y + dy * scale, _LATTICE_SHAPE[0]),
        (dz * scale, _LATTICE_SHAPE[1]),
        (foot_x + dx * scale, _LATTICE_SHAPE[2]),
    )
    where = np.stack([p * np.float32(1.0 / _LATTICE_MM) + np.float32(n / 2) for p, n in points])
    folds = ndimage.map_coordinates(
        brain.folds, where, order=3, prefilter=False, mode="grid-wrap", output=np.float32
    )
    return folds, radius


def sulcus_distance(field: Field, pixel_mm: float) -> Field:
    """Convert the noise to a distance from its zero set: value / steepness, with a lower bound."""
    down, across = np.gradient(field, np.float32(pixel_mm))
    steep = np.sqrt(down * down + across * across + np.float32(0.13**2))
    return (np.abs(field) / steep).astype(np.float32)
