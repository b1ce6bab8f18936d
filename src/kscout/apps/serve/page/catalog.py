"""What the page offers: slices of a dataset, reconstructions and policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import final

import torch

from kscout import reconstruction
from kscout.acquisition.plan import Plan
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError, unknown_name
from kscout.evaluation.records.run_names import run_label
from kscout.evaluation.running.entries import (
    EvaluationEntry,
    budgets_of,
    check_distinct,
    is_fitted,
    resolve,
)
from kscout.json_types import JsonObject
from kscout.names import POLICIES
from kscout.policies.fixed import FixedOrder

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
        pairs = zip(self.slices.volumes, self.slices.slices, strict=True)
        volumes = [(x, [n for _, n in group]) for x, group in groupby(pairs, itemgetter(0))]
        _, n_rows, n_cols = self.slices.shape
        sizes = {"n_rows": n_rows, "n_cols": n_cols}
        return {"name": self.name, "title": self.title, "volumes": volumes, **sizes}


@final
class Catalog:
    """Finds slices by name."""

    def __init__(self, data: Path | None, size: tuple[int, int]) -> None:
        self.sources = [] if data is None else _stored(Store.open(data))
        """The slices of each split and matrix size, the test split first."""
        self.size = self.sources[0].slices.shape[1:] if self.sources else size

    def find(self, name: str) -> SliceSource:
        """Return the slices of a name in an address."""
        source = next((one for one in self.sources if one.name == name), None)
        if source is None:
            raise DataError("these slices are not here; choose others")
        return source


def _stored(store: Store) -> list[SliceSource]:
    sources = []
    arrays = sorted(store.manifest.arrays, key=lambda one: _FIRST.index(one.split))
    for array in arrays:
        is_one = sum(other.split == array.split for other in arrays) == 1
        name = array.split if is_one else "{}-{}x{}".format(array.split, *array.size)
        slices = store.split(array.split, size=array.size, lazy=True)
        sources.append(SliceSource(name, f"{store.name}, {name}", slices))
    return sources


_ALWAYS = ("center-out", "random", "oracle")
"""Policies that are always offered, in addition to those of the command line."""
_SIDE = 128
"""Side of images without another source of the size."""


@final
class Models:
    """Loads the reconstructions and policies of the command line; all must be usable."""

    def __init__(
        self, reconstructors: Sequence[str], policies: Sequence[str], *, device: torch.device
    ) -> None:
        self.device = device
        named = {run_label(Path(x)) if Path(x).exists() else x: x for x in reconstructors}
        if len(named) < len(reconstructors):
            raise ConfigError("two reconstructions have the same name; rename a folder")
        self._reconstructors = {name: reconstruction.load(one) for name, one in named.items()}
        self._frozen: dict[tuple[str, int, int], Reconstructor] = {}
        self._policies: dict[str, EvaluationEntry | None] = {}
        files = [one for one in policies if one not in POLICIES or Path(one).exists()]
        sizes = ((_SIDE, _SIDE), Plan(1, 1))
        loaded = [resolve(Path(one) if Path(one).exists() else one, *sizes)[0] for one in files]
        check_distinct(loaded)
        for one in policies:
            entry = loaded[files.index(one)] if one in files else None
            if is_fitted(one) if entry is None else entry.fits:
                raise ConfigError(
                    f"policy {one!r} is fitted on data; give a fitted one: a run folder, a weights "
                    "file or a name of the zoo"
                )
            if entry is None:
                resolve(one, *sizes)
            self._policies[one if entry is None else entry.name] = entry
        for name in _ALWAYS:
            self._policies.setdefault(name)
        self.budget = next(iter(budgets_of(policies)), None)
        """Start and budget of the first policy that has them."""

    @property
    def reconstructions(self) -> list[str]:
        return list(self._reconstructors)

    @property
    def policies(self) -> list[str]:
        """Return the names; those of the command line come first."""
        return list(self._policies)

    @property
    def loaded(self) -> dict[str, Policy]:
        """Return the policies that were loaded without a size."""
        return {name: one.policy for name, one in self._policies.items() if one is not None}

    @property
    def fixed(self) -> str:
        """Fixed order for comparison: the first fitted one, or center-out."""
        orders = (name for name, one in self.loaded.items() if isinstance(one, FixedOrder))
        return next(orders, "center-out")

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns that the policies require; a default size if they support any."""
        bound = [one for one in self.loaded.values() if not one.serves_any_size]
        cols, rows = ([getattr(one, name, None) for one in bound] for name in ("n_cols", "n_rows"))
        n_cols = next((n for n in cols if isinstance(n, int)), _SIDE)
        n_rows = next((n for n in rows if isinstance(n, int)), n_cols)
        return n_rows, n_cols

    def network(self, name: str) -> Reconstructor:
        """Return a reconstruction with its training settings."""
        if name not in self._reconstructors:
            raise unknown_name("reconstruction", name, self.reconstructions)
        return self._reconstructors[name]

    def reconstructor(self, name: str, n_rows: int, n_cols: int) -> Reconstructor:
        """Return a reconstruction, frozen for images of a size."""
        network, key = self.network(name), (name, n_rows, n_cols)
        if key not in self._frozen:
            self._frozen[key] = network.frozen(
                precision="auto", n_rows=n_rows, n_cols=n_cols, device=self.device
            )
        return self._frozen[key]

    def entry(self, name: str, shape: Sequence[int], plan: Plan) -> EvaluationEntry:
        """Return a policy for images of a shape."""
        if name not in self._policies:
            raise unknown_name("policy", name, self.policies)
        entry = self._policies[name]
        return resolve(name, shape, plan)[0] if entry is None else entry
