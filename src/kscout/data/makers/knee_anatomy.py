"""The anatomy of one procedural knee: bones, muscles and skin as shapes in space.

Body axes in millimeters from the middle of the joint: x to the side, y toward the foot, z to the
back. Coronal and sagittal slices cut the same anatomy.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from kscout.data.makers.drawing import Grid, Point, cone, ellipsoid, join, meet
from kscout.data.makers.noise_fields import Field, SmoothNoise
from kscout.data.makers.scanner import Warp, plane_grid, rotation

_REACH_MM = {"coronal": (3.0, 34.0), "sagittal": (0.0, 38.0)}
"""Middle and half thickness of the slab that the slices cover."""
_CONTRASTS = {"pd-fs": 0.40, "pd": 0.38, "t1": 0.10, "t2": 0.06, "t2-fs": 0.06}


@final
@dataclass(frozen=True)
class Knee:
    """One subject: everything that all its slices share. Lengths in millimeters."""

    view: str
    contrast: str
    side: float
    """+1 puts the outer (fibular) side at positive x."""
    scale: float
    field_of_view: float
    shaft: float
    condyle: float
    flexion: float
    gap: float
    """Free height between femur and tibia."""
    cortex: float
    cartilage: float
    effusion: float
    fat: float
    leg: tuple[float, float]
    trabeculae: float
    marrow_contrast: float
    muscle_streaks: float
    wasting: float
    """How much fat has replaced muscle."""
    has_scar: float
    edema: tuple[Point, float] | None
    tear: int
    vessels: tuple[tuple[Point, Point, float, bool], ...]
    warp: Warp
    shade: SmoothNoise
    pose: tuple[float, float, float]
    shift: tuple[float, float]
    has_stripes: bool


def _draw_vessels(
    rng: np.random.Generator, side: float
) -> tuple[tuple[Point, Point, float, bool], ...]:
    """Draw the popliteal pair, a saphenous vein and a few small branches."""
    x = rng.normal(0.0, 3.0)
    vessels: list[tuple[Point, Point, float, bool]] = [
        ((x, -120.0, 32.0), (x + 3.0, 110.0, 36.0), rng.uniform(2.2, 3.2), False),
        (
            (x + side * 7.0, -120.0, 38.0),
            (x + side * 6.0, 110.0, 40.0),
            rng.uniform(2.5, 3.8),
            True,
        ),
        ((-side * 50.0, -120.0, 22.0), (-side * 46.0, 110.0, 14.0), rng.uniform(1.0, 2.0), True),
    ]
    for _ in range(6):
        start = rng.uniform((-45.0, -70.0, -30.0), (45.0, 70.0, 45.0))
        end = start + rng.normal(0.0, (10.0, 22.0, 10.0))
        bright = bool(rng.random() < 0.7)
        vessels.append((_point(start), _point(end), rng.uniform(0.5, 1.3), bright))
    return tuple(vessels)


def _point(values: np.ndarray) -> Point:
    x, y, z = values.tolist()
    return (x, y, z)


def draw_knee(rng: np.random.Generator, variant: str) -> Knee:
    """Draw a subject; both variants draw the same numbers, so they show the same knee."""
    u = rng.uniform
    side = float(rng.choice([-1.0, 1.0]))
    edema_at, edema_size, has_edema = rng.uniform(-30.0, 30.0, 3), u(9.0, 16.0), u() < 0.35
    return Knee(
        view=str(rng.choice(["coronal", "sagittal"], p=[0.7, 0.3])),
        contrast=str(rng.choice(list(_CONTRASTS), p=list(_CONTRASTS.values()))),
        side=side,
        scale=math.exp(rng.normal(0.0, 0.06)),
        field_of_view=u(138.0, 176.0),
        shaft=u(13.0, 17.0),
        condyle=u(0.94, 1.08),
        flexion=rng.normal(4.0, 7.0),
        gap=u(4.0, 6.2),
        cortex=u(1.0, 1.9),
        cartilage=u(1.5, 2.7),
        effusion=max(0.0, u(-3.5, 4.5)),
        fat=u(3.5, 13.0),
        leg=(u(50.0, 58.0), u(54.0, 62.0)),
        trabeculae=u(24.0, 44.0),
        marrow_contrast=u(0.04, 0.11),
        muscle_streaks=u(0.10, 0.26),
        wasting=u(0.0, 3.0),
        has_scar=u(0.15, 0.8),
        edema=(_point(edema_at), edema_size) if has_edema else None,
        tear=int(rng.integers(0, 5)),
        vessels=_draw_vessels(rng, side),
        warp=Warp.draw(rng, ((2.6, 4, 2), (0.8, 11, 5))),
        shade=SmoothNoise.draw(rng, 5, 3),
        pose=(rng.normal(0.0, 0.06), rng.normal(0.0, 0.06), rng.normal(0.0, 0.09)),
        shift=(rng.normal(0.0, 4.0), rng.normal(0.0, 7.0)),
        has_stripes=variant == "structured",
    )


def slice_grid(knee: Knee, depth: float, n_points: int) -> Grid:
    """Return where the slice at `depth` in [-1, 1] lies in the body, bent by the subject's warp."""
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
    head = cone(grid, (s * 36.0, 26.0, 19.0), (s * 36.0, 40.0, 18.0), (8.5, 6.0))
    stem = cone(grid, (s * 36.0, 40.0, 18.0), (s * 31.0, 160.0, 16.0), (6.0, 6.0))
    low, back = -31.0 + 0.25 * knee.flexion, -42.5 - 0.25 * knee.effusion
    patella = ellipsoid(grid, (s * 1.5, low, back), (21.0, 20.0, 9.0))
    return Bones(
        femur=_femur(grid, knee),
        tibia=_tibia(grid, knee),
        fibula=join(head, stem, 3.0),
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


def muscle_bellies(knee: Knee) -> tuple[tuple[Point, Point, tuple[float, float]], ...]:
    """Return the bellies of the muscles around the knee as tapering capsules."""
    s, thin = knee.side, knee.wasting
    return (
        ((-s * 34.0, -100.0, -14.0), (-s * 39.0, -30.0, -16.0), (33.0 - thin, 9.0 - thin)),
        ((s * 33.0, -105.0, -14.0), (s * 38.0, -44.0, -16.0), (34.0 - thin, 9.0 - thin)),
        ((0.0, -120.0, -34.0), (0.0, -66.0, -34.0), (16.0, 5.0)),
        ((s * 27.0, -100.0, 36.0), (s * 43.0, 8.0, 26.0), (23.0 - thin, 5.0)),
        ((-s * 22.0, -100.0, 38.0), (-s * 31.0, 2.0, 36.0), (23.0 - thin, 7.5)),
        ((-s * 46.0, -110.0, 16.0), (-s * 46.0, 15.0, 20.0), (14.0, 5.5)),
        ((-s * 20.0, -24.0, 37.0), (-s * 25.0, 95.0, 38.0), (9.0, 28.0 - thin)),
        ((s * 20.0, -22.0, 37.0), (s * 24.0, 95.0, 38.0), (8.0, 26.0 - thin)),
        ((s * 28.0, 30.0, -9.0), (s * 27.0, 100.0, -10.0), (5.5, 21.0 - thin)),
        ((s * 8.0, 20.0, 25.0), (-s * 6.0, 100.0, 22.0), (8.0, 24.0 - thin)),
        ((s * 42.0, 40.0, 8.0), (s * 40.0, 110.0, 8.0), (4.5, 14.0)),
    )
