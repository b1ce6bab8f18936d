"""Shapes in millimeters, and a canvas that paints them with soft edges.

A shape is a signed distance (negative inside) over the points of a slice plane. Edges are smooth
polynomials of one or two pixels, so rounding errors of a distance cause no jump.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, final

import numpy as np
from jaxtyping import Complex64, Float32

from kscout.data.makers.noise_fields import Field

Point = Sequence[float]
"""Millimeters, or factors, along three axes."""
Window = tuple[slice, slice]

_COARSE = 8
"""Step in pixels at which a shape is sampled to find its bounding box."""
_FAR_MM = 50.0


@final
@dataclass(frozen=True)
class Volume:
    """The slices of one subject, with a common scale: bright tissue is about one."""

    stored: Float32[np.ndarray, "slice row col"] | Complex64[np.ndarray, "slice coil row col"]
    """Images, or k-space of simulated coils."""
    acquisition: str
    """View and contrast, such as `coronal-pd-fs`."""
    source: str
    """Origin of the images: the phantom and its variant, or the real head."""


@final
@dataclass(frozen=True)
class Grid:
    """Body coordinates of each pixel of a slice: millimeters along three axes."""

    x: Field
    y: Field
    z: Field
    pixel_mm: float

    def at(self, window: Window) -> "Grid":
        return Grid(self.x[window], self.y[window], self.z[window], self.pixel_mm)

    def moved(self, x: Field | float, y: Field | float, z: Field | float) -> "Grid":
        return Grid(
            np.asarray(self.x + x, np.float32),
            np.asarray(self.y + y, np.float32),
            np.asarray(self.z + z, np.float32),
            self.pixel_mm,
        )


Shape = Callable[[Grid], Field]


def ellipsoid(grid: Grid, center: Point, radii: Point) -> Field:
    """Return the distance to an ellipsoid along the axes, exact to first order at its surface.

    `k (k - 1) / |grad|` with `k = |p / radii|` and `|grad| = |p / radii^2|`.
    """
    scaled = np.zeros_like(grid.x)
    steep = np.full_like(grid.x, 1e-8)
    for axis, middle, radius in zip((grid.x, grid.y, grid.z), center, radii, strict=True):
        part = (axis - np.float32(middle)) * np.float32(1.0 / radius)
        part *= part
        scaled += part
        part *= np.float32(1.0 / (radius * radius))
        steep += part
    np.sqrt(scaled, out=scaled)
    np.sqrt(steep, out=steep)
    return scaled * (scaled - 1.0) / steep


def cone(
    grid: Grid, start: Point, end: Point, radii: Point, flat: Point = (1.0, 1.0, 1.0)
) -> Field:
    """Return the distance to a capsule whose radius goes from the first to the second radius.

    `flat` has factors on distances from the axis; below one widens the capsule along that axis.
    """
    span = [e - s for s, e in zip(start, end, strict=True)]
    px, py, pz = (
        axis - np.float32(at) for axis, at in zip((grid.x, grid.y, grid.z), start, strict=True)
    )
    scale = 1.0 / (span[0] ** 2 + span[1] ** 2 + span[2] ** 2)
    along = px * np.float32(span[0] * scale)
    along += py * np.float32(span[1] * scale)
    along += pz * np.float32(span[2] * scale)
    np.clip(along, 0.0, 1.0, out=along)
    total = np.zeros_like(px)
    for part, length, factor in zip((px, py, pz), span, flat, strict=True):
        part -= along * np.float32(length)
        if factor != 1.0:
            part *= np.float32(factor)
        part *= part
        total += part
    np.sqrt(total, out=total)
    along *= np.float32(radii[1] - radii[0])
    along += np.float32(radii[0])
    total -= along
    return total


def _rounding(first: Field, second: Field, blend_mm: float) -> Field:
    """Return `max(blend - |first - second|, 0)^2 / (4 blend)`: how far rounding moves a corner."""
    near = first - second
    np.abs(near, out=near)
    np.subtract(np.float32(blend_mm), near, out=near)
    np.maximum(near, 0.0, out=near)
    near *= near
    near *= np.float32(0.25 / blend_mm)
    return near


def join(first: Field, second: Field, blend_mm: float = 2.0) -> Field:
    """Return the union of two shapes, its corner rounded over `blend_mm`."""
    joined = np.minimum(first, second)
    joined -= _rounding(first, second, blend_mm)
    return joined


def meet(first: Field, second: Field, blend_mm: float = 1.0) -> Field:
    """Return the intersection of two shapes, its edge rounded over `blend_mm`."""
    common = np.maximum(first, second)
    common += _rounding(first, second, blend_mm)
    return common


def coverage(distance: Field, width_mm: float) -> Field:
    """Return the covered fraction of each pixel, `3 t^2 - 2 t^3` across an edge of `width_mm`."""
    share = distance * np.float32(-1.0 / width_mm)
    share += np.float32(0.5)
    np.clip(share, 0.0, 1.0, out=share)
    bend = share * np.float32(-2.0)
    bend += np.float32(3.0)
    share *= share
    share *= bend
    return share


@final
@dataclass(frozen=True)
class BodyShape:
    """One shape of an anatomy, and how it is painted; see `Canvas.paint`."""

    at: Point
    """Middle of an ellipsoid, or where a cone starts."""
    radii: Point
    to: Point | None = None
    """Where a cone ends."""
    grows: Sequence[int] = (1, 1)
    """Which radii of a cone differ between subjects."""
    flat: Point = (1.0, 1.0, 1.0)
    shear: float = 0.0
    """Displacement to the side per millimeter along the second axis."""
    inset: float = 0.0
    """Inward displacement of the surface, in millimeters."""
    tissue: str = ""
    texture: str = ""
    opacity: float = 1.0
    soft: float = 1.0

    def grown(self, factor: float = 1.0, offset: float = 0.0) -> "BodyShape":
        """Return the cone of a subject, whose radii are larger by a factor and an offset."""
        pairs = zip(self.radii, self.grows, strict=True)
        radii = [radius * factor**grows + offset * grows for radius, grows in pairs]
        return replace(self, radii=radii)

    def turned(self, side: float) -> "BodyShape":
        """Return the cone, mirrored for the other leg if `side` is -1."""
        (x, *at), (end, *to) = self.at, self.to or self.at
        return replace(self, at=(side * x, *at), to=(side * end, *to))

    def distance(self, grid: Grid) -> Field:
        if self.shear:
            grid = grid.moved(self.shear * grid.y, 0.0, 0.0)
        if self.to is None:
            return ellipsoid(grid, self.at, self.radii) + np.float32(self.inset)
        return cone(grid, self.at, self.to, self.radii, self.flat) + np.float32(self.inset)


def parts_of(table: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[BodyShape]]:
    """Return the parts of an anatomy by the names of their groups."""
    return {name: [BodyShape(**part) for part in parts] for name, parts in table.items()}


def join_all(parts: Iterable[BodyShape], grid: Grid, blend_mm: float) -> Field:
    """Return the union of parts, its corners rounded over `blend_mm`."""
    return reduce(partial(join, blend_mm=blend_mm), (part.distance(grid) for part in parts))


@final
class Canvas:
    """An image onto which tissues are painted in order, later ones over earlier ones."""

    def __init__(
        self, grid: Grid, signals: dict[str, float], textures: Mapping[str, Field] | None = None
    ) -> None:
        self.grid = grid
        self.signals = signals
        self.textures = textures or {}
        self.image = np.zeros(grid.x.shape, dtype=np.float32)
        self._probe = grid.at((slice(None, None, _COARSE), slice(None, None, _COARSE)))

    def window(self, shape: Shape | Field, reach_mm: float) -> Window | None:
        """Return a box that contains the shape and its soft edge."""
        if isinstance(shape, np.ndarray):
            probed = shape[::_COARSE, ::_COARSE]
        else:
            probed = shape(self._probe)
        # The distance changes by about the step; warped grids and squeezed shapes need the margin.
        near = probed < reach_mm + 1.6 * _COARSE * self.grid.pixel_mm
        rows, cols = np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))
        if rows.size == 0:
            return None
        return (
            slice(max(0, (int(rows[0]) - 1) * _COARSE), (int(rows[-1]) + 2) * _COARSE),
            slice(max(0, (int(cols[0]) - 1) * _COARSE), (int(cols[-1]) + 2) * _COARSE),
        )

    def clip(self, shape: Shape, bounds: Field, blend_mm: float) -> Field | None:
        """Return the part of a shape inside bounds, computed only in the shape's box."""
        window = self.window(shape, 2.0 * self.grid.pixel_mm + blend_mm)
        if window is None:
            return None
        clipped = np.full_like(bounds, _FAR_MM)
        clipped[window] = meet(shape(self.grid.at(window)), bounds[window], blend_mm)
        return clipped

    def paint(
        self,
        shape: Shape | Field,
        tissue: str,
        *,
        texture: str = "",
        gain: float = 1.0,
        opacity: float = 1.0,
        soft: float = 1.0,
    ) -> None:
        """Cover a shape, a signed distance or a function that gives it on a grid, with a tissue.

        `gain` is a factor on the relative change of the signal by `texture`. An opacity of one
        hides earlier tissues. `soft` is the width of the edge, in units of two pixels of the fine
        grid.
        """
        width_mm = 2.0 * soft * self.grid.pixel_mm
        window = self.window(shape, width_mm)
        if window is None or opacity <= 0.0:
            return
        distance = shape[window] if isinstance(shape, np.ndarray) else shape(self.grid.at(window))
        share = coverage(distance, width_mm)
        if opacity != 1.0:
            share *= np.float32(opacity)
        below = self.image[window]
        above = np.float32(self.signals[tissue])
        if texture:
            change = self.textures[texture][window] * np.float32(gain) * above
            change += above
            change -= below
        else:
            change = above - below
        change *= share
        below += change

    def paint_parts(
        self, parts: Sequence[BodyShape], view: Callable[[Grid], Grid] = lambda grid: grid
    ) -> None:
        """Paint parts of an anatomy in order, each where `view` shows the grid."""
        for part in parts:
            self.paint(
                partial(lambda grid, shape: shape(view(grid)), shape=part.distance),
                part.tissue,
                texture=part.texture,
                opacity=part.opacity,
                soft=part.soft,
            )
