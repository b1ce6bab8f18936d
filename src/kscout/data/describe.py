"""What `kscout data info` tells about a store."""

from collections import Counter
from typing import Any

import numpy as np

from kscout.data.store import ArrayRecord, Store


def summarize(store: Store) -> dict[str, Any]:
    """Return what a command that made a store answers, as JSON values."""
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
        "kind": manifest.kind,
        "schema_version": manifest.schema_version,
        "arrays": [_describe_array(store, array) for array in manifest.arrays],
        "acquisitions": dict(sorted(acquisitions.items())),
        "recipe": manifest.recipe,
    }


def _describe_array(store: Store, array: ArrayRecord) -> dict[str, Any]:
    records = store.records(array.split, array.size)
    low, high = _pixel_range(store.images(array.split, size=array.size))
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


def _pixel_range(images: np.ndarray) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for start in range(0, len(images), 256):
        chunk = images[start : start + 256]
        low, high = min(low, float(chunk.min())), max(high, float(chunk.max()))
    return low, high
