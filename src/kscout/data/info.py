"""What `kscout data info` tells about a store."""

import math
from collections import Counter
from typing import Any

import torch

from kscout.data.manifest import ArrayRecord
from kscout.data.slices import SliceSet
from kscout.data.store import Store


def summarize(store: Store) -> dict[str, Any]:
    """Return what `data make` and `data import` answer about the new store, as JSON values."""
    manifest = store.manifest
    return {
        "path": str(store.path),
        "name": store.name,
        "fingerprint": store.fingerprint,
        "splits": manifest.splits,
        "left_out": list(manifest.left_out),
        "warnings": list(manifest.warnings),
    }


def describe(store: Store) -> dict[str, Any]:
    """Return counts, sizes, ranges, checksums and origin of a store as JSON values."""
    manifest = store.manifest
    acquisitions = Counter(record.acquisition or "unknown" for record in manifest.volumes)
    return {
        **summarize(store),
        "kind": store.kind.name,
        "n_coils": max(store.kind.shape(array.shape)[0] for array in manifest.arrays),
        "schema_version": manifest.schema_version,
        "arrays": [_describe_array(store, array) for array in manifest.arrays],
        "acquisitions": dict(sorted(acquisitions.items())),
        "recipe": manifest.recipe,
    }


def _describe_array(store: Store, array: ArrayRecord) -> dict[str, Any]:
    records = store.records(array.split, array.size)
    low, high = _pixel_range(store.split(array.split, size=array.size, lazy=True))
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


def _pixel_range(slices: SliceSet) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for index in torch.arange(len(slices)).split(256):
        images = slices.magnitudes(index)
        low, high = min(low, float(images.min())), max(high, float(images.max()))
    return low, high
