"""The anatomy of one procedural knee: bones, muscles and skin as shapes in space.

Body axes in millimeters from the middle of the joint: x to the side, y toward the foot, z to the
back. Coronal and sagittal slices cut the same anatomy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from kscout.data.makers import load_table
from kscout.data.makers.drawing import Grid, Point, cone, ellipsoid, join, join_all, meet, parts_of
from kscout.data.makers.noise_fields import Field, SmoothNoise
from kscout.data.makers.scanner import Warp, plane_grid, rotation
from kscout.data.makers.subject import choice, drawn, factor, normal, normals, smooth, uniform

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
