"""Procedural knees: one three-dimensional anatomy per subject, cut into coronal or sagittal slices.

The `structured` variant adds quasi-periodic stripes to muscle and marrow. Their frequency depends
on the view, which rewards adaptivity by design: it shows that a policy can adapt, and is no
benchmark.
"""

import math
from functools import partial
from typing import Literal, get_args

import numpy as np

from kscout.data.makers.coils import Receiver
from kscout.data.makers.drawing import Canvas, Volume, cone, ellipsoid, meet
from kscout.data.makers.knee import PARTS, Bones, Knee, find_bones, skin_distance, slice_grid
from kscout.data.makers.noise_fields import Band, Field, band_texture
from kscout.data.makers.scanner import Scanner
from kscout.data.makers.subject import draw_subject
from kscout.data.makers.tissue import draw_signals
from kscout.errors import unknown_name

Variant = Literal["realistic", "structured"]

STRIPES = {"coronal": 12.0, "sagittal": 19.0}
"""Cycles per field of view of the `structured` variant's stripes."""

_KIND = 1


def _stripes(knee: Knee, n_points: int, depth: float) -> Field:
    """Return the waves along the columns, with a slowly varying phase."""
    columns = (np.arange(n_points, dtype=np.float32) + 0.5) / np.float32(n_points)
    wander = 0.6 * knee.shade.plane(n_points, depth)
    phase = np.float32(2.0 * math.pi * STRIPES[knee.view]) * columns[None, :] + wander
    return np.cos(phase).astype(np.float32)


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
        waves = _stripes(knee, n_points, depth)
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
    if variant not in get_args(Variant):
        raise unknown_name("knee variant", variant, list(get_args(Variant)))
    rng = np.random.default_rng([seed, volume, _KIND])
    knee = draw_subject(Knee, rng, has_stripes=variant == "structured")
    signals = draw_signals(rng, knee.contrast)
    return Volume(
        stored=Scanner.examine(
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
