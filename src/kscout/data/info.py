"""The report of `kscout data info` about a store."""

import math
from collections import Counter
from dataclasses import replace

from kscout.data.importing.images import Spacing, resampled_size
from kscout.data.manifest import ArrayRecord, Geometry
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.json_types import JsonObject

_LOOKED_AT = 64
"""K-space slices, spread evenly, whose images are computed."""


def summarize(store: Store) -> JsonObject:
    """Return the report of `data make` and `data import` on the new store, as JSON values."""
    manifest = store.manifest
    return {
        "path": str(store.path),
        "name": store.name,
        "fingerprint": store.fingerprint,
        "splits": manifest.splits,
        "geometry": _describe_geometry(store),
        "left_out": list(manifest.left_out),
        "warnings": list(manifest.warnings),
    }


def describe(store: Store) -> JsonObject:
    """Return counts, sizes, ranges, checksums and origin of a store as JSON values."""
    manifest = store.manifest
    acquisitions = Counter(record.acquisition or "unknown" for record in manifest.volumes)
    return {
        **summarize(store),
        "kind": store.kind.name,
        "target": store.kind.target,
        "columns": manifest.columns,
        "is_prospective": manifest.is_prospective,
        "virtual": manifest.virtual,
        "n_coils": max(store.kind.shape(array.shape)[0] for array in manifest.arrays),
        "schema_version": manifest.schema_version,
        "arrays": [_describe_array(store, array) for array in manifest.arrays],
        "acquisitions": dict(sorted(acquisitions.items())),
        "recipe": manifest.recipe,
    }


def _describe_array(store: Store, array: ArrayRecord) -> JsonObject:
    records = store.records(array.split, array.size)
    slices = store.measured(array.split, size=array.size, lazy=True)
    # Each slice of k-space needs one transform per coil.
    low, high = _pixel_range(slices if store.columns is None else slices.sample(_LOOKED_AT))
    return {
        "split": array.split,
        "rows": array.size[0],
        "cols": array.size[1],
        "volumes": len(records),
        "slices": array.shape[0],
        "pixels": [low, high],
        "data_range": [
            min(record.data_range for record in records),
            max(record.data_range for record in records),
        ],
        "file": array.file,
        "bytes": (store.path / array.file).stat().st_size,
        "sha256": array.sha256,
    }


def _describe_geometry(store: Store) -> list[JsonObject]:
    """Describe how images of files became images of the store, most frequent way first."""
    records = [record for record in store.manifest.volumes if record.geometry is not None]
    # Volumes that differ in nothing that is described here are counted together.
    counts = Counter(
        (record.geometry and replace(record.geometry, slice_mm=None), record.size)
        for record in records
    )
    found = [(one, size, n) for (one, size), n in counts.most_common() if one is not None]
    return [_describe_change(count, geometry, size) for geometry, size, count in found]


def _describe_change(count: int, geometry: Geometry, size: tuple[int, int]) -> JsonObject:
    """Return sizes and spacings in the file and in the store, the cropping, and a sentence."""
    before, after, kept = geometry.spacing_mm, geometry.stored_mm, geometry.kept
    text = "1 volume" if count == 1 else f"{count} volumes"
    text += " of {}x{}".format(*geometry.size) + _at(before)
    if kept is not None:  # k-space
        cropped = [a - b for a, b in zip(geometry.size, kept, strict=True)]
        text += ", cut to {}x{}".format(*kept) if any(cropped) else ""
        text += " (columns computed, not measured)" if geometry.is_computed else ""
        text += ", k-space resized to {}x{}".format(*size) + _at(after) if size != kept else ""
    else:
        whole = resampled_size(geometry.size, before, after) if before and after else geometry.size
        cropped = [max(0, have - keep) for have, keep in zip(whole, size, strict=True)]
        text += ", resampled to {}x{}".format(*whole) + _at(after) if before != after else ""
        if any(cropped):
            text += ", cropped to {}x{} by {} rows and {} columns".format(*size, *cropped)
            if after is not None:
                lost_mm = (n * step for n, step in zip(cropped, after, strict=True))
                text += " ({:.4g} and {:.4g} mm)".format(*lost_mm)
        elif size != whole:
            text += ", padded to {}x{}".format(*size)
    return {
        "volumes": count,
        "file_size": list(geometry.size),
        "file_mm": before and list(before),
        "stored_size": list(size),
        "stored_mm": after and list(after),
        "cropped": cropped,
        "description": text,
    }


def _at(spacing_mm: Spacing | None) -> str:
    return " pixels" if spacing_mm is None else " at {:.4g}x{:.4g} mm".format(*spacing_mm)


def _pixel_range(slices: SliceSet) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for stored in slices.contents.chunks():
        images = slices.contents.kind.to_images(stored)
        low, high = min(low, float(images.min())), max(high, float(images.max()))
    return low, high
