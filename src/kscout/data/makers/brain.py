"""Procedural axial brains: one head in space per subject, cut from skull base to vertex.

Body axes in millimeters from the middle of the brain: x to the side, y to the back, z up. Sulci
are the zero set of band-pass noise, evaluated at the surface point along the surface normal:
sheets that start at the surface, bend a little, and end at a random depth.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
from jaxtyping import Float32
from scipy import fft, ndimage

from kscout.data.makers import load_table
from kscout.data.makers.coils import Receiver
from kscout.data.makers.drawing import (
    Canvas,
    Grid,
    Point,
    Volume,
    ellipsoid,
    join,
    join_all,
    meet,
    parts_of,
)
from kscout.data.makers.noise_fields import Band, Field, SmoothNoise, band_texture
from kscout.data.makers.scanner import Warp, draw_signals, examine, plane_grid, rotation
from kscout.data.makers.subject import choice, draw_subject, drawn, factor, normals, smooth, uniform

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


def fold_field(grid: Grid, brain: Brain, depth_mm: Field, level: float) -> tuple[Field, Field]:
    """Return the noise whose zero set is the middle of sulci, and the distance from the axis."""
    # Points are displaced by smooth noise that grows with depth, so that sulci are curved.
    gain = 1.0 + 0.22 * np.clip(depth_mm, 0.0, 25.0)
    shifts = (gain * noise.plane(grid.x.shape[0], level) for noise in brain.bends)
    bent = grid.moved(*(np.asarray(shift, np.float32) for shift in shifts))
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


_KIND = 2
_LOWEST_MM, _HIGHEST_MM = -46.0, 60.0


def _draw_textures(
    rng: np.random.Generator, brain: Brain, n_points: int, level: float
) -> dict[str, Field]:
    """Draw relative brightness changes, and grain and shade of unit variance."""
    shade = brain.tissue_shade.plane(n_points, level)
    fine = band_texture(rng, n_points, Band(40.0, 16.0))
    coarse = band_texture(rng, n_points, Band(15.0, 6.0))
    fat = 0.06 * shade + 0.08 * coarse - 0.2 / (1.0 + 30.0 * fine * fine)
    return {
        "white": 0.025 * shade + 0.012 * fine + 0.012 * coarse,
        "gray": 0.02 * shade + 0.025 * fine,
        "fat": fat.astype(np.float32),
        "grain": coarse,
        "shade": shade,
    }


def _paint_head(canvas: Canvas, brain: Brain, hulls: Hulls) -> None:
    """Skin, fat, muscle, then the skull: two dark tables with marrow between."""
    grid, outside = canvas.grid, -hulls.cavity
    canvas.paint(hulls.head, "skin")
    canvas.paint(hulls.head + 1.8, "scalp-fat", texture="fat")
    # Muscle fills the scalp's depth only at the sides and below: temples, jaw and neck.
    low = np.clip((12.0 - grid.z) * np.float32(1.0 / 30.0), 0.0, 1.0)
    thick = np.float32(0.55 * brain.scalp) + 4.0 * (1.0 - low)
    muscle = np.maximum(hulls.head + thick + 1.5, grid.z - 34.0)
    canvas.paint(muscle.astype(np.float32), "muscle", texture="gray", gain=3.0, soft=2.0)
    _paint_face(canvas)
    base = np.clip((-8.0 - grid.z) * np.float32(1.0 / 10.0), 0.0, 1.0)
    shell = np.float32(brain.skull) * (1.0 + 0.12 * canvas.textures["shade"]) * (1.0 - 0.6 * base)
    canvas.paint(-outside - shell, "cortical-bone")
    table = 0.27 * shell
    marrow = np.maximum(-outside - shell + table, outside + table)
    # Below the vault the skull is thin or full of air.
    marrow = np.maximum(marrow, -14.0 - grid.z)
    canvas.paint(marrow.astype(np.float32), "diploe", texture="fat", gain=2.0, opacity=0.85)
    canvas.paint(hulls.cavity, "csf")


def _paint_face(canvas: Canvas) -> None:
    """Orbits with eyes and optic nerves, nose and sinuses, ear bones: low slices only."""
    side, grain = mirrored(canvas.grid), canvas.textures["grain"]
    if float(canvas.grid.z.min()) > 0.0:
        return
    canvas.paint_parts(PARTS["orbits"], mirrored)
    nose = ellipsoid(side, (0.0, -72.0, -46.0), (12.0, 27.0, 25.0))
    canvas.paint(nose, "cortical-bone", opacity=0.97)
    cells = np.abs(side.x - 5.5 - 1.2 * grain) - 0.9
    canvas.paint(np.maximum(cells, nose + 1.0).astype(np.float32), "mucosa", opacity=0.8)
    canvas.paint(np.maximum(np.abs(side.x) - 0.7, nose).astype(np.float32), "mucosa", opacity=0.7)
    canvas.paint_parts(PARTS["sinuses"], mirrored)
    ears = ellipsoid(side, (52.0, 24.0, -46.0), (24.0, 13.0, 13.0))
    canvas.paint(ears + 2.0 * grain, "cortical-bone", opacity=0.9, soft=2.0)


def _find_folds(grid: Grid, brain: Brain, hulls: Hulls, level: float) -> tuple[Field, Field]:
    """Return a distance that is negative in sulci, and that from the nearest fluid."""
    n_points = grid.x.shape[0]
    depth = -hulls.cerebrum
    field, radius = fold_field(grid, brain, depth, level)
    sheet = sulcus_distance(field, grid.pixel_mm)
    reach = np.float32(brain.sulcus_depth) * (1.0 + 0.24 * brain.depths.plane(n_points, level))
    # No sulcus enters the deep middle of the brain.
    reach = np.minimum(reach, depth + np.minimum(hulls.core + 4.0, radius - 15.0))
    wide = np.float32(brain.sulcus_width) + 0.8 * np.clip(1.0 - 0.2 * depth, 0.0, 1.0)
    sulci = meet(sheet, (depth - reach).astype(np.float32), 3.0)
    lateral = _sylvian(grid, brain, level)
    fluid = np.minimum((sulci - wide).astype(np.float32), lateral - np.float32(brain.sulcus_width))
    return fluid, join(join(sulci, lateral, 1.5), depth, 1.5)


def _sylvian(grid: Grid, brain: Brain, level: float) -> Field:
    """Return the distance to the lateral fissure: the insula's sheet and its way to the surface."""
    n_points = grid.x.shape[0]
    wave = 2.0 * brain.bends[0].plane(n_points, level)
    side = mirrored(grid.moved(wave, 2.0 * brain.bends[1].plane(n_points, level), 0.0))
    return join_all(PARTS["sylvian"], side, 1.0) + np.float32(0.8)


def _paint_cerebrum(canvas: Canvas, brain: Brain, hulls: Hulls, level: float) -> None:
    """White matter, a ribbon of gray matter along every surface, fluid in the sulci."""
    fluid, to_fluid = _find_folds(canvas.grid, brain, hulls, level)
    hull = hulls.cerebrum
    canvas.paint(hull, "white-matter", texture="white")
    thick = np.float32(brain.cortex) * (1.0 + 0.12 * canvas.textures["grain"])
    # The corpus callosum has no cortex.
    bare = np.clip(4.0 - 0.5 * hulls.core - 0.5 * np.abs(canvas.grid.x), 0.0, None)
    ribbon = np.maximum(to_fluid - thick + bare, hull)
    canvas.paint(ribbon.astype(np.float32), "gray-matter", texture="gray", soft=1.6)
    canvas.paint(np.maximum(fluid, hull), "csf", soft=1.2, opacity=0.92)


def _paint_deep(canvas: Canvas, brain: Brain) -> None:
    """Deep gray matter and ventricles."""
    grid = canvas.grid
    canvas.paint_parts(PARTS["nuclei"], mirrored)
    side = mirrored(grid)
    cones = (part.grown(brain.ventricles) for part in PARTS["ventricles"])
    lateral = meet(join_all(cones, side, 2.0), np.float32(0.7) - side.x, 0.5)
    canvas.paint(lateral, "csf", soft=1.2)
    canvas.paint_parts(PARTS["caudate"], mirrored)
    third = ellipsoid(grid, (0.0, 6.0, -1.0), (1.5 * brain.ventricles, 14.0, 10.0))
    canvas.paint(third, "csf", opacity=0.95)
    plexus = ellipsoid(side, (22.0, 34.0, 9.0), (2.2, 5.0, 3.0))
    canvas.paint(plexus + 0.8 * canvas.textures["grain"], "blood", opacity=0.6)


def _paint_cerebellum(canvas: Canvas, brain: Brain, hulls: Hulls, level: float) -> None:
    """Fine leaves of gray matter around a branching white core; brain stem and fourth ventricle."""
    grid, hull = canvas.grid, hulls.cerebellum
    if float(hull.min()) < 2.0:
        n_points = grid.x.shape[0]
        side = mirrored(grid)
        dx, dy, dz = side.x * 0.8 - 5.0, grid.y - 24.0, grid.z + 30.0
        radius = np.sqrt(dx * dx + dy * dy + 0.6 * dz * dz)
        bend = 2.2 * brain.bends[2].plane(n_points, level) + 1.3 * canvas.textures["grain"]
        leaves = np.cos(np.float32(2.0 * np.pi / brain.folia_mm) * (radius + bend))
        leaves += 0.45 * canvas.textures["grain"]
        canvas.paint(hull, "gray-matter", texture="gray")
        core = join_all(PARTS["cerebellar-core"], side, 4.0)
        core += 2.0 * brain.depths.plane(n_points, level)
        branches = np.maximum(0.9 * (0.55 - leaves), np.maximum(core - 9.0, hull + 2.5))
        canvas.paint(branches.astype(np.float32), "white-matter", opacity=0.75, soft=1.5)
        canvas.paint(core, "white-matter", texture="white", soft=3.0)
        cracks = np.maximum(0.8 * (leaves + 0.85), np.maximum(hull, -8.0 - hull))
        canvas.paint(cracks.astype(np.float32), "csf", opacity=0.55, soft=1.2)
    canvas.paint(hulls.stem, "white-matter", texture="white")
    canvas.paint(hulls.stem + 4.0, "deep-gray", texture="gray", opacity=0.4, soft=5.0)
    canvas.paint(lambda g: ellipsoid(g, (0.0, 27.0, -13.0), (1.3, 1.3, 8.0)), "csf")
    fourth = (0.0, 34.0, -35.0), (7.0 * brain.ventricles**0.5, 4.0, 10.0)
    canvas.paint(lambda g: ellipsoid(g, *fourth), "csf", soft=1.5)


def _paint_midline(canvas: Canvas, hulls: Hulls) -> None:
    """The falx between the hemispheres and the sinuses at its rim."""
    grid = canvas.grid
    falx = np.maximum(np.abs(grid.x) - 0.35, np.maximum(4.0 - hulls.core, hulls.cavity))
    falx = np.maximum(falx, -8.0 - grid.z)
    canvas.paint(falx.astype(np.float32), "ligament", opacity=0.45)
    canvas.paint_parts(PARTS["sagittal-sinus"])


def _paint_findings(canvas: Canvas, brain: Brain, hulls: Hulls) -> None:
    """Small lesions of the white matter and, rarely, a tumor in its edema."""
    inside = hulls.cerebrum + np.float32(brain.cortex + 3.0)
    lesions, tumor = brain.findings
    for center, size in lesions:
        spot = ellipsoid(canvas.grid, center, (size, 1.4 * size, 1.6 * size))
        spot = meet(spot + 0.5 * canvas.textures["grain"], inside, 1.0)
        canvas.paint(spot, "lesion", opacity=0.85, soft=2.5)
    if tumor is not None:
        center, size = tumor
        swelling = ellipsoid(canvas.grid, center, (1.7 * size, 2.0 * size, 1.7 * size))
        swelling = meet(swelling + 2.5 * canvas.textures["grain"], inside, 3.0)
        canvas.paint(swelling, "edema", opacity=0.6, soft=7.0)
        mass = (
            ellipsoid(canvas.grid, center, (size, 1.1 * size, size))
            + 1.5 * canvas.textures["grain"]
        )
        canvas.paint(meet(mass, inside, 2.0), "lesion", texture="grain", gain=0.15, soft=2.0)
        core = meet(mass + 0.45 * np.float32(size), inside, 2.0)
        canvas.paint(core, "fluid", opacity=0.7, soft=3.0)


def _draw_slice(
    rng: np.random.Generator, brain: Brain, signals: dict[str, float], place: float, n_points: int
) -> Field:
    """Draw the slice at a place in [0, 1] between skull base and vertex."""
    height_mm = _LOWEST_MM + place * (_HIGHEST_MM - _LOWEST_MM)
    textures = _draw_textures(rng, brain, n_points, place)
    # Depth is upward; columns run to the side, rows to the back.
    axes = rotation(brain.pose) / np.array([brain.width, brain.length, 1.0])[:, None]
    origin = axes @ np.array([*brain.shift, height_mm])
    grid = plane_grid(n_points, brain.field_of_view, axes, origin)
    canvas = Canvas(brain.warp.apply(grid, place), signals, textures)
    hulls = find_hulls(canvas.grid, brain)
    _paint_head(canvas, brain, hulls)
    _paint_midline(canvas, hulls)
    _paint_cerebellum(canvas, brain, hulls, place)
    _paint_cerebrum(canvas, brain, hulls, place)
    _paint_deep(canvas, brain)
    _paint_findings(canvas, brain, hulls)
    return canvas.image


def draw_brain_volume(
    *, seed: int, volume: int, n_slices: int, size: int, receiver: Receiver | None = None
) -> Volume:
    """Draw one axial brain examination, its slices spread evenly from skull base to vertex."""
    rng = np.random.default_rng([seed, volume, _KIND])
    brain = draw_subject(Brain, rng)
    signals = draw_signals(rng, brain.contrast, spread=0.03)
    return Volume(
        stored=examine(
            rng, n_slices, size, partial(_draw_slice, rng, brain, signals), receiver=receiver
        ),
        acquisition=f"axial-{brain.contrast}",
        source="kscout brain phantom",
    )
