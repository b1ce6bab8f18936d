"""Slices that the page offers: those of a store, and those of files that were dropped."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import DataError
from kscout.serve.page.dropped import read_dropped

_N_DROPPED = 8
"""Files that are kept; the one that nobody asked for longest makes room."""
_FIRST = ("test", "val", "train")


@final
@dataclass(frozen=True)
class Source:
    """Slices of one matrix size."""

    name: str
    """In addresses of the page."""
    title: str
    slices: SliceSet

    def table(self) -> dict[str, Any]:
        """Return what a page needs to offer them: the slices of every volume, in order."""
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
    """Finds slices by name; any thread may ask."""

    def __init__(self, data: Path | None, size: tuple[int, int]) -> None:
        self._stored = {} if data is None else _stored(Store.open(data))
        first = next(iter(self._stored.values()), None)
        self.size = size if first is None else first.slices.shape[1:]
        self._dropped: OrderedDict[str, Source] = OrderedDict()
        self._lock = threading.Lock()

    def sources(self) -> list[Source]:
        """Return all there is, the test split first."""
        with self._lock:
            return [*self._stored.values(), *self._dropped.values()]

    def find(self, name: str) -> Source:
        """Return slices by their name in addresses."""
        with self._lock:
            if name in self._dropped:
                self._dropped.move_to_end(name)
            found = self._stored.get(name) or self._dropped.get(name)
        if found is None:
            raise DataError("these slices are not here; choose others, or drop their file again")
        return found

    def drop(self, content: bytes, name: str) -> Source:
        """Take in a file; the same file gets the same name."""
        slices = read_dropped(content, name, self.size)
        own = f"file-{hashlib.sha256(content).hexdigest()[:16]}"
        with self._lock:
            self._dropped[own] = Source(own, slices.name, slices)
            self._dropped.move_to_end(own)
            while len(self._dropped) > _N_DROPPED:
                self._dropped.popitem(last=False)
            return self._dropped[own]


def _stored(store: Store) -> dict[str, Source]:
    """Return the splits of a store; one that holds several matrix sizes is several sources."""
    found = {}
    arrays = sorted(store.manifest.arrays, key=lambda one: _FIRST.index(one.split))
    for array in arrays:
        is_one = sum(other.split == array.split for other in arrays) == 1
        name = array.split if is_one else "{}-{}x{}".format(array.split, *array.size)
        slices = store.split(array.split, size=array.size, lazy=True)
        found[name] = Source(name, f"{store.name}, {name}", slices)
    return found
