"""Slices that the page offers, from a dataset and from dropped files."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kscout.apps.serve.page.dropped import read_dropped
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import DataError
from kscout.json_types import JsonObject

_N_DROPPED = 8
"""Files in memory; the least recently used one is removed first."""
_FIRST = ("test", "val", "train")


@final
@dataclass(frozen=True)
class SliceSource:
    """Slices of one matrix size."""

    name: str
    """Name in addresses of the page."""
    title: str
    slices: SliceSet

    def table(self) -> JsonObject:
        """Return the source as JSON: its volumes in order, each with its slice numbers."""
        volumes: list[tuple[str, list[int]]] = []
        for volume, number in zip(self.slices.volumes, self.slices.slices, strict=True):
            if not volumes or volumes[-1][0] != volume:
                volumes.append((volume, []))
            volumes[-1][1].append(number)
        _, n_rows, n_cols = self.slices.shape
        return {
            **{"name": self.name, "title": self.title, "volumes": volumes},
            **{"n_rows": n_rows, "n_cols": n_cols},
        }


@final
class Catalog:
    """Finds slices by name; thread-safe."""

    def __init__(self, data: Path | None, size: tuple[int, int]) -> None:
        self._stored = {} if data is None else _stored(Store.open(data))
        first = next(iter(self._stored.values()), None)
        self.size = size if first is None else first.slices.shape[1:]
        self._dropped: OrderedDict[str, SliceSource] = OrderedDict()
        self._lock = threading.Lock()

    def sources(self) -> list[SliceSource]:
        """Return all sources, the test split first."""
        with self._lock:
            return [*self._stored.values(), *self._dropped.values()]

    def find(self, name: str) -> SliceSource:
        """Return the slices of a name in an address."""
        with self._lock:
            if name in self._dropped:
                self._dropped.move_to_end(name)
            source = self._stored.get(name) or self._dropped.get(name)
        if source is None:
            raise DataError("these slices are not here; choose others, or drop their file again")
        return source

    def drop(self, content: bytes, name: str) -> SliceSource:
        """Add a file; the same content gets the same name."""
        slices = read_dropped(content, name, self.size)
        key = f"file-{hashlib.sha256(content).hexdigest()[:16]}"
        with self._lock:
            self._dropped[key] = SliceSource(key, slices.name, slices)
            self._dropped.move_to_end(key)
            while len(self._dropped) > _N_DROPPED:
                self._dropped.popitem(last=False)
            return self._dropped[key]


def _stored(store: Store) -> dict[str, SliceSource]:
    """Return the splits of a dataset, with one source per matrix size."""
    sources = {}
    arrays = sorted(store.manifest.arrays, key=lambda one: _FIRST.index(one.split))
    for array in arrays:
        is_one = sum(other.split == array.split for other in arrays) == 1
        name = array.split if is_one else "{}-{}x{}".format(array.split, *array.size)
        slices = store.split(array.split, size=array.size, lazy=True)
        sources[name] = SliceSource(name, f"{store.name}, {name}", slices)
    return sources
