"""Procedural knees: one three-dimensional anatomy per subject, cut into coronal or sagittal slices.

Body axes in millimeters from the middle of the joint: x to the side, y toward the foot, z to the
back. The `structured` variant adds quasi-periodic stripes to muscle and marrow. Their frequency
depends on the view, which rewards adaptivity by design: it shows that a policy can adapt, and is
no benchmark.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import numpy as np

from kscout.data.makers import load_table
from kscout.data.makers.coils import Receiver
from kscout.data.makers.drawing import (
    Canvas,
    Grid,
    Point,
    Volume,
    cone,
    ellipsoid,
    join,
    join_all,
    meet,
    parts_of,
)
from kscout.data.makers.noise_fields import Band, Field, SmoothNoise, band_texture
from kscout.data.makers.scanner import Warp, draw_signals, examine, plane_grid, rotation
from kscout.data.makers.subject import (
    choice,
    draw_subject,
    drawn,
    factor,
    normal,
    normals,
    smooth,
    uniform,
)

_REACH_MM = {"coronal": (3.0, 34.0), "sagittal": (0.0, 38.0)}
"""Middle and half thickness of the slab of slices."""
_NUMBERS = load_table("knee.toml")
PARTS = parts_of(_NUMBERS["parts"])
Vessel = tuple[Point, Point, float, bool]
"""Start, end, radius, and whether it is bright."""


def _draw_vessels(rng: np.random.Generator, so_far: Mapping[str, Any]) -> tuple[Vessel, ...]:
    """Draw the popliteal pair, a saphenous vein and a few small branches."""
    x, s = rng.normal(0.0, 3.0), so_far["side"]
    vessels: list[Vessel] = [
        ((x, -120.0, 32.0), (x + 3.0, 110.0, 36.0), rng.uniform(2.2, 3.2), False),
        ((x + s * 7.0, -120.0, 38.0), (x + s * 6.0, 110.0, 40.0), rng.uniform(2.5, 3.8), True),
        ((-s * 50.0, -120.0, 22.0), (-s * 46.0, 110.0, 14.0), rng.uniform(1.0, 2.0), True),
    ]
    for _ in range(6):
        start = rng.uniform((-45.0, -70.0, -30.0), (45.0, 70.0, 45.0))
        end = start + rng.normal(0.0, (10.0, 22.0, 10.0))
        bright = bool(rng.random() < 0.7)
        vessels.append((start.tolist(), end.tolist(), rng.uniform(0.5, 1.3), bright))
    return tuple(vessels)


def _draw_edema(rng: np.random.Generator, _: object) -> tuple[Point, float] | None:
    at, size = rng.uniform(-30.0, 30.0, 3).tolist(), rng.uniform(9.0, 16.0)
    return (at, size) if rng.uniform() < 0.35 else None


@final
@dataclass(frozen=True)
class Knee:
    """Parameters of one subject, shared by all its slices. Lengths in millimeters."""

    has_stripes: bool
    side: float = drawn(lambda rng, _: float(rng.choice([-1.0, 1.0])))
    """+1 puts the outer (fibular) side at positive x."""
    edema: tuple[Point, float] | None = drawn(_draw_edema)
    view: str = choice(_NUMBERS["views"])
    contrast: str = choice(_NUMBERS["contrasts"])
    scale: float = factor(0.06)
    field_of_view: float = uniform(138.0, 176.0)
    shaft: float = uniform(13.0, 17.0)
    condyle: float = uniform(0.94, 1.08)
    flexion: float = normal(4.0, 7.0)
    gap: float = uniform(4.0, 6.2)
    """Free height between femur and tibia."""
    cortex: float = uniform(1.0, 1.9)
    cartilage: float = uniform(1.5, 2.7)
    effusion: float = drawn(lambda rng, _: max(0.0, rng.uniform(-3.5, 4.5)))
    fat: float = uniform(3.5, 13.0)
    leg: tuple[float, float] = drawn(lambda rng, _: (rng.uniform(50, 58), rng.uniform(54, 62)))
    trabeculae: float = uniform(24.0, 44.0)
    marrow_contrast: float = uniform(0.04, 0.11)
    muscle_streaks: float = uniform(0.10, 0.26)
    wasting: float = uniform(0.0, 3.0)
    """Fraction of muscle replaced by fat."""
    has_scar: float = uniform(0.15, 0.8)
    tear: int = drawn(lambda rng, _: int(rng.integers(0, 5)))
    vessels: tuple[Vessel, ...] = drawn(_draw_vessels)
    warp: Warp = drawn(lambda rng, _: Warp.draw(rng, ((2.6, 4, 2), (0.8, 11, 5))))
    shade: SmoothNoise = smooth(5, 3)
    pose: tuple[float, float, float] = normals((0.0, 0.06), (0.0, 0.06), (0.0, 0.09))
    shift: tuple[float, float] = normals((0.0, 4.0), (0.0, 7.0))


def slice_grid(knee: Knee, depth: float, n_points: int) -> Grid:
    """Return the body coordinates of the slice at `depth` in [-1, 1], with the subject's warp."""
    x, y, z = np.eye(3)
    across, through = (x, z) if knee.view == "coronal" else (z, x)
    frame = np.stack([across, y, through], axis=1)
    axes = frame @ rotation(knee.pose) / knee.scale
    middle, reach = _REACH_MM[knee.view]
    offset = np.array([*knee.shift, middle + depth * reach])
    grid = plane_grid(n_points, knee.field_of_view, axes, axes @ offset)
    return knee.warp.apply(grid, 0.5 + 0.5 * depth)


@final
@dataclass(frozen=True)
class Bones:
    """Signed distances of the bones over one slice."""

    femur: Field
    tibia: Field
    fibula: Field
    patella: Field


def _femur(grid: Grid, knee: Knee) -> Field:
    w, lean = knee.condyle, knee.flexion
    shaft = cone(grid, (2.0, -150.0, -8.0 - lean), (0.0, -42.0, -7.0), (knee.shaft, knee.shaft + 3))
    body = join(shaft, ellipsoid(grid, (0.0, -29.0, -2.0), (36.0 * w, 25.0, 23.0)), 14.0)
    for sign in (-1.0, 1.0):
        inner = 1.0 if sign != knee.side else -1.0
        middle = (sign * 22.5 * w, -16.5 + 0.5 * inner, 6.0 + inner)
        body = join(body, ellipsoid(grid, middle, (19.0 * w, 18.5, 29.0 + inner)), 5.0)
    notch = cone(grid, (0.0, -4.0, 44.0), (0.0, 3.0, -8.0), (14.0, 5.0), (1.25, 0.9, 1.0))
    groove = cone(grid, (0.0, 4.0, -36.0), (0.0, -34.0, -34.0), (9.0, 6.0))
    return meet(meet(body, -notch, 4.0), -groove, 4.0)


def _tibia(grid: Grid, knee: Knee) -> Field:
    w, shaft = knee.condyle, knee.shaft * 0.86
    plateau = ellipsoid(grid, (0.0, 20.0, 3.0), (41.0 * w, 23.0, 27.0))
    neck = cone(grid, (0.0, 26.0, 1.0), (0.0, 66.0, -3.0), (25.0, shaft), (0.85, 1.0, 1.0))
    body = join(plateau, neck, 10.0)
    body = join(body, cone(grid, (0.0, 60.0, -3.0), (1.0, 160.0, 2.0), (shaft, shaft * 0.9)), 12.0)
    body = join(body, ellipsoid(grid, (0.0, 40.0, -24.0), (9.0, 11.0, 6.0)), 6.0)
    # The plateau is a plane with two shallow dishes and, between them, the two spines.
    dish = (np.abs(grid.x) - np.float32(22.0 * w)) * np.float32(1.0 / 20.0)
    top = np.float32(2.4 + knee.gap) + 1.6 * np.maximum(1.0 - dish * dish, 0.0)
    spine = (np.abs(grid.x) - 5.0) * np.float32(1.0 / 4.5)
    back = (grid.z - 4.0) * np.float32(1.0 / 12.0)
    top -= 7.0 / (1.0 + spine * spine) / (1.0 + back * back)
    return meet(body, (top - grid.y).astype(np.float32), 2.0)


def find_bones(grid: Grid, knee: Knee) -> Bones:
    """Return the bones over a slice."""
    s = knee.side
    low, back = -31.0 + 0.25 * knee.flexion, -42.5 - 0.25 * knee.effusion
    patella = ellipsoid(grid, (s * 1.5, low, back), (21.0, 20.0, 9.0))
    return Bones(
        femur=_femur(grid, knee),
        tibia=_tibia(grid, knee),
        fibula=join_all((part.turned(s) for part in PARTS["fibula"]), grid, 3.0),
        patella=meet(patella, (grid.z - np.float32(back + 6.0)).astype(np.float32), 5.0),
    )


def skin_distance(grid: Grid, knee: Knee) -> Field:
    """Return the distance to the skin: an ellipse that narrows from thigh to calf."""
    t = grid.y * np.float32(1.0 / 80.0)
    width = 1.0 - 0.09 * t + 0.05 * t * t
    x = grid.x / (width * np.float32(knee.leg[0]))
    z = (grid.z - 3.0 - 3.0 * t) / (width * np.float32(knee.leg[1]))
    radius = np.sqrt(x * x + z * z)
    return ((radius - 1.0) * np.float32(0.5 * sum(knee.leg))).astype(np.float32)


Variant = Literal["realistic", "structured"]

STRIPES = {"coronal": 12.0, "sagittal": 19.0}
"""Cycles per field of view of the `structured` variant's stripes."""

_KIND = 1


def _draw_textures(
    rng: np.random.Generator, knee: Knee, n_points: int, depth: float
) -> dict[str, Field]:
    """Draw relative changes of brightness, and patches of unit variance for fluid."""
    shade = knee.shade.plane(n_points, depth)
    fine = band_texture(rng, n_points, Band(knee.trabeculae, 7.0, 0.0, 0.5))
    marrow = np.float32(knee.marrow_contrast) * fine + 0.06 * shade
    fibers = Band(rng.uniform(16.0, 26.0), 6.0, rng.normal(0.0, 0.2), 4.0)
    streaks = band_texture(rng, n_points, fibers)
    muscle = np.float32(knee.muscle_streaks) * (0.3 * streaks + 0.2 * np.maximum(streaks, 0.8) ** 2)
    lobules = band_texture(rng, n_points, Band(13.0, 6.0, 0.6, 0.3))
    # Fat suppression varies over the field of view.
    uneven = 0.25 if knee.contrast.endswith("-fs") else 0.05
    fat = uneven * shade - 0.22 / (1.0 + 40.0 * lobules * lobules) + 0.02 * fine
    if knee.has_stripes:
        # Waves along the columns, with a slowly varying phase.
        columns = (np.arange(n_points, dtype=np.float32) + 0.5) / np.float32(n_points)
        turns = np.float32(2.0 * math.pi * STRIPES[knee.view]) * columns[None, :]
        waves = np.cos(turns + 0.6 * shade).astype(np.float32)
        marrow, muscle = marrow + 0.5 * waves, muscle + 0.6 * waves
    return {"marrow": marrow, "muscle": muscle, "fat": fat, "patches": shade}


def _paint_soft_tissue(canvas: Canvas, knee: Knee) -> None:
    """Skin, the fat below it, and muscles divided by planes of fat."""
    skin = skin_distance(canvas.grid, knee)
    canvas.paint(skin, "skin")
    canvas.paint(skin + 1.8, "fat", texture="fat")
    # The fat pad is thin in front of the knee and thicker toward the thigh.
    fat = knee.fat * (1.0 - 0.004 * canvas.grid.y + 0.006 * np.minimum(canvas.grid.z, 30.0))
    deep = (skin + 2.0 + np.maximum(fat, 1.5)).astype(np.float32)
    fascia = np.abs(deep) - np.float32(0.35)
    canvas.paint(fascia.astype(np.float32), "ligament", opacity=0.5)
    sheath = min(1.1, 0.4 + 0.3 * knee.wasting)
    for part in PARTS["bellies"]:
        shape = part.grown(offset=-knee.wasting).turned(knee.side).distance
        if (belly := canvas.clip(shape, deep, 2.0)) is not None:
            canvas.paint(belly - np.float32(sheath), "fat", texture="fat")
            canvas.paint(belly, "muscle", texture="muscle", soft=1.5)


def _paint_joint(canvas: Canvas, knee: Knee, bones: Bones) -> None:
    """Fluid, fat pad, cartilage, menisci, ligaments and tendons around the joint space."""
    y = canvas.grid.y
    recess = ellipsoid(canvas.grid, (0.0, -62.0, -31.0), (22.0, 26.0, 1.5 + 1.3 * knee.effusion))
    canvas.paint_parts(PARTS["joint-fat"])
    recess += np.float32(0.5 + 0.5 * knee.effusion) * canvas.textures["patches"]
    canvas.paint(recess, "fluid", soft=3.0, opacity=0.85)
    pool = np.float32(0.5 + 1.1 * knee.effusion) * (1.0 + 0.35 * canvas.textures["patches"])
    height = np.abs(y + 10.0) - np.float32(13.0 + 2.0 * knee.effusion)
    capsule = meet((bones.femur - pool).astype(np.float32), height, 8.0)
    canvas.paint(capsule, "fluid", soft=3.0, opacity=min(0.9, 0.3 + 0.25 * knee.effusion))
    space = np.maximum(bones.femur, bones.tibia) - np.float32(2.6 + 0.5 * knee.effusion)
    canvas.paint(space, "fluid", soft=1.5, opacity=0.95)
    canvas.paint_parts(PARTS["fat-pad"])
    _paint_cartilage(canvas, knee, bones)
    _paint_menisci(canvas, knee, bones)
    _paint_cords(canvas, knee)


def _paint_cords(canvas: Canvas, knee: Knee) -> None:
    """Cruciate and collateral ligaments, iliotibial band, tendons above and below the kneecap."""
    s = knee.side
    anterior = ((s * 9.0, -15.0, 14.0), (-s * 3.0, knee.gap + 2.0, -9.0), (3.4, 3.4))
    canvas.paint(lambda grid: cone(grid, *anterior), "ligament", texture="muscle", opacity=0.95)
    canvas.paint_parts([part.turned(s) for part in PARTS["cords"]])


def _paint_cartilage(canvas: Canvas, knee: Knee, bones: Bones) -> None:
    y, x = canvas.grid.y, np.abs(canvas.grid.x)
    thick = np.float32(knee.cartilage)
    side = x - np.float32(38.0 * knee.condyle)
    canvas.paint(meet(bones.femur - thick, np.maximum(-24.0 - y, side), 2.0), "cartilage")
    top = np.maximum(y - np.float32(knee.gap + 7.0), side)
    canvas.paint(meet(bones.tibia - thick, top, 1.0), "cartilage")
    front = (-42.0 - canvas.grid.z).astype(np.float32)
    canvas.paint(meet(bones.patella - thick, front, 1.0), "cartilage")


def _paint_menisci(canvas: Canvas, knee: Knee, bones: Bones) -> None:
    """Two C-shaped wedges, thick at the rim, between the bones."""
    grid = canvas.grid
    level = grid.y - np.float32(2.6 + 0.5 * knee.gap)
    for sign in (-1.0, 1.0):
        middle = sign * 22.0 * knee.condyle
        dx = (grid.x - np.float32(middle)) * np.float32(1.0 / 17.5)
        dz = (grid.z - 4.0) * np.float32(1.0 / 21.0)
        ring = np.sqrt(dx * dx + dz * dz) * 19.5
        opening = (3.0 - np.float32(sign) * (grid.x - np.float32(sign * 8.0))).astype(np.float32)
        wedge = np.maximum(np.abs(level) - 0.42 * (ring - 8.0), ring - 21.5)
        wedge = np.maximum(np.maximum(wedge, opening), 1.2 - np.minimum(bones.femur, bones.tibia))
        canvas.paint(wedge.astype(np.float32), "meniscus")
        if knee.tear == int(sign):
            slit = np.maximum(np.abs(level - 0.3 * (ring - 14.0)) - 0.35, wedge + 0.3)
            canvas.paint(slit.astype(np.float32), "fluid", opacity=0.8)


def _paint_bones(canvas: Canvas, knee: Knee, bones: Bones) -> None:
    """Dark cortex, thicker in the shafts, around marrow with a scar of the growth plate."""
    shaft = np.clip((np.abs(canvas.grid.y) - 45.0) * np.float32(1.0 / 35.0), 0.0, 1.0)
    rim = np.float32(knee.cortex) * (1.0 + 1.6 * shaft)
    for bone in (bones.femur, bones.tibia, bones.fibula, bones.patella):
        canvas.paint(bone, "cortical-bone")
        canvas.paint(bone + rim, "marrow", texture="marrow", soft=1.4)
    bend = canvas.grid.x * canvas.grid.x * np.float32(1.0 / 400.0)
    for bone, level, arch in ((bones.femur, -37.0, 1.5), (bones.tibia, 25.0, -1.0)):
        line = np.abs(canvas.grid.y - np.float32(level) - np.float32(arch) * bend) - 0.3
        scar = np.maximum(line, bone + 2.0 * rim)
        canvas.paint(scar.astype(np.float32), "cortical-bone", opacity=knee.has_scar, soft=1.5)


def _paint_findings(canvas: Canvas, knee: Knee, bones: Bones) -> None:
    """Vessels outside the bones, bruised marrow inside them."""
    outside = np.float32(1.5) - np.minimum(
        np.minimum(bones.femur, bones.tibia), np.minimum(bones.fibula, bones.patella)
    )
    for start, end, radius, bright in knee.vessels:
        vessel = partial(cone, start=start, end=end, radii=(radius, radius))
        if (tube := canvas.clip(vessel, outside, 0.5)) is not None:
            canvas.paint(tube, "blood" if bright else "flow-void", opacity=0.9)
    if knee.edema is not None:
        at, size = knee.edema
        bruise = ellipsoid(canvas.grid, at, (size, 0.8 * size, 1.3 * size))
        inside = np.minimum(bones.femur, bones.tibia) + np.float32(1.5 * knee.cortex)
        canvas.paint(meet(bruise, inside, 2.0), "edema", opacity=0.6, soft=9.0)


def _draw_slice(
    rng: np.random.Generator, knee: Knee, signals: dict[str, float], place: float, n_points: int
) -> Field:
    depth = 2.0 * place - 1.0
    textures = _draw_textures(rng, knee, n_points, 0.5 + 0.5 * depth)
    canvas = Canvas(slice_grid(knee, depth, n_points), signals, textures)
    bones = find_bones(canvas.grid, knee)
    _paint_soft_tissue(canvas, knee)
    _paint_joint(canvas, knee, bones)
    _paint_bones(canvas, knee, bones)
    _paint_findings(canvas, knee, bones)
    return canvas.image


def draw_knee_volume(
    *,
    seed: int,
    volume: int,
    n_slices: int,
    size: int,
    variant: Variant = "realistic",
    receiver: Receiver | None = None,
) -> Volume:
    """Draw one knee examination."""
    rng = np.random.default_rng([seed, volume, _KIND])
    knee = draw_subject(Knee, rng, has_stripes=variant == "structured")
    signals = draw_signals(rng, knee.contrast)
    return Volume(
        stored=examine(
            rng,
            n_slices,
            size,
            partial(_draw_slice, rng, knee, signals),
            receiver=receiver,
            axis="rows",
        ),
        acquisition=f"{knee.view}-{knee.contrast}",
        source=f"kscout knee phantom, {variant}"
        + (" (engineered to reward adaptivity)" if knee.has_stripes else ""),
    )
