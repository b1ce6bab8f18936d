"""Prepared slices on disk: arrays with checksums, and a manifest that describes them.

A store is a folder of `manifest.json` and one `.npy` array per split and matrix size. The manifest
is written last and the folder is renamed atomically, so a folder with a manifest is complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import final

import numpy as np
import torch

from kscout.data.contents import read_contents
from kscout.data.integrity import check_array, check_finite, different
from kscout.data.kinds import KSPACE, Kind, kind_of
from kscout.data.manifest import (
    MANIFEST,
    SPLITS,
    ArrayRecord,
    Manifest,
    VolumeRecord,
    read_manifest,
)
from kscout.data.slices import SliceSet
from kscout.errors import DataError
from kscout.files import as_path, checksum

WAYS_TO_SPLIT = (
    "import at least 3 volumes with --held-out above 0, or name splits by --splits or by folders"
)

_N_SHOWN = 12
"""Number of slices that a notebook shows."""


@final
@dataclass(frozen=True)
class Store:
    """A finished store, opened for reading."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: "Path | str | Store") -> "Store":
        """Open a store, of which only the manifest is read; an open one is returned."""
        if isinstance(path, Store):
            return path
        way = "" if isinstance(path, SliceSet) else "or build slices with SliceSet.from_images"
        path = as_path(path, "dataset", way)
        if not (path / MANIFEST).is_file():
            raise DataError(_why_no_store(path))
        store = cls(path, read_manifest(path))
        kind = store.kind
        for array in store.manifest.arrays:
            if (array.dtype, len(array.axes)) != (kind.dtype, len(kind.axes)):
                raise DataError(
                    f"{path / array.file} holds {array.dtype} of axes {', '.join(array.axes)} by "
                    f"the manifest, which are no {kind.name}; make the store again"
                )
        return store

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal for copies, regardless of name or folder."""
        return self.manifest.fingerprint

    @property
    def anatomy(self) -> str | None:
        """Anatomy made by `kscout data make`: knee, brain, heads; None if the recipe has none."""
        settings = self.manifest.recipe.get("settings")
        kind = settings.get("kind") if isinstance(settings, dict) else None
        return kind if isinstance(kind, str) else None

    @property
    def columns(self) -> str | None:
        """Origin of k-space columns; None if k-space is the transform of images."""
        return self.manifest.columns if self.kind.name == KSPACE.name else None

    @property
    def kind(self) -> Kind:
        """Kind of all arrays of the store."""
        return kind_of(self.manifest.kind, self.manifest.target)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {split}" for split, count in self.manifest.splits.items())
        sizes = ", ".join(dict.fromkeys("{}×{}".format(*one.size) for one in self.manifest.arrays))
        return f"Store {self.name}: {counts} slices of {sizes}; fingerprint {self.fingerprint[:12]}"

    def _repr_html_(self) -> str:
        from kscout.figures.notebook import pictures_html

        counts = ", ".join(f"{count} {split}" for split, count in self.manifest.splits.items())
        first = self.manifest.arrays[0]
        slices = self.measured(first.split, size=first.size, lazy=True).sample(_N_SHOWN)
        _, n_rows, n_cols = slices.shape
        coils = f", {slices.shape[0]} coils" if self.kind.name == KSPACE.name else ""
        caption = f"{self.name}: {counts} slices of {n_rows}×{n_cols}{coils}"
        shown = slices.magnitudes() / slices.data_range[:, None, None]
        return pictures_html(caption, shown.clamp(0, 1).numpy())

    def split(
        self, name: str, *, size: int | tuple[int, int] | None = None, lazy: bool | None = None
    ) -> SliceSet:
        """Open a split.

        Args:
            name: train, val or test.
            size: matrix size, as columns or, if several sizes have equal columns, (rows, columns);
                needed only if the split has several sizes.
            lazy: read slices when a batch is requested instead of reading all now; None does so if
                they would take over half the free memory.
        """
        if self.manifest.is_prospective:
            raise DataError(
                f"{self.path} contains undersampled k-space (imported with --prospective) without "
                "ground truth for training or scoring; reconstruct it with `data export`"
            )
        return self.measured(name, size=size, lazy=lazy)

    def measured(
        self, name: str, *, size: int | tuple[int, int] | None = None, lazy: bool | None = None
    ) -> SliceSet:
        """Open a split that may be undersampled: `selectable` marks the measured columns."""
        array = self.array(name, size=size)
        records = self.records(name, array.size)
        lengths = [len(record.slices) for record in records]
        ranges = np.repeat(np.array([r.data_range for r in records], dtype=np.float32), lengths)
        bounds = np.repeat(np.array([r.selectable for r in records]), lengths, axis=0)
        columns = np.arange(array.shape[-1])
        selectable = (columns >= bounds[:, :1]) & (columns < bounds[:, 1:])
        for place, record in zip(np.cumsum([0, *lengths]).tolist(), records, strict=False):
            if record.measured is not None:
                masks = record.masks or [record.measured] * len(record.slices)
                measured = np.stack([np.isin(columns, mask) for mask in masks])
                selectable[place : place + len(record.slices)] &= measured
        file = check_array(self.path, array)
        contents = read_contents(self.kind, file, lazy=lazy)
        if not contents.is_mapped:
            check_finite(contents.array.numpy(), file)
        return SliceSet(
            contents=contents,
            data_range=torch.from_numpy(ranges),
            selectable=torch.from_numpy(selectable),
            position=torch.arange(array.shape[0]),
            volumes=tuple(record.volume for record in records for _ in record.slices),
            slices=tuple(number for record in records for number in record.slices),
            name=self.name,
            split=name,
            n_basis=self.manifest.n_basis,
        )

    def records(self, split: str, size: tuple[int, int]) -> list[VolumeRecord]:
        """Return the volumes of a split and matrix size, in the order of the array."""
        return [r for r in self.manifest.volumes if (r.split, r.size) == (split, size)]

    def array(self, split: str, *, size: int | tuple[int, int] | None = None) -> ArrayRecord:
        """Return the array of a split; `size` is needed if the split has several matrix sizes."""
        of_split = [array for array in self.manifest.arrays if array.split == split]
        if not of_split:
            of_any = list(self.manifest.splits)
            splits = ", ".join(of_any) or "none"
            advice = f"; to create it, {WAYS_TO_SPLIT}" if split in SPLITS else ""
            if split not in SPLITS and (near := get_close_matches(split.lower(), of_any, n=1)):
                advice = f"; did you mean {near[0]!r}?"
            if split == "test" and of_any:
                advice += f"; to use an existing split, name it with --split {of_any[0]}"
            raise DataError(f"{self.path} has no split {split!r}; it has: {splits}{advice}")
        matches = [array for array in of_split if size in (None, array.size, array.size[1])]
        if len(matches) != 1:
            raise DataError(
                f"split {split!r} of {self.path} {_why_no_size(of_split, self.manifest.arrays)}"
            )
        return matches[0]

    def verify(self) -> None:
        """Check every array against its checksum."""
        for array in self.manifest.arrays:
            file = check_array(self.path, array)
            if checksum(file) != array.sha256:
                raise different(file)


def unfinished_path(path: Path) -> Path:
    """Return the hidden folder next to `path` in which a store is written until it is complete."""
    if not path.name:
        raise DataError(f"{path} cannot be the name of a store; name a new folder with --out")
    return path.with_name(f".{path.name}.unfinished")


def _why_no_size(arrays: Sequence[ArrayRecord], of_all: Sequence[ArrayRecord]) -> str:
    """Describe the matrix sizes of a split and a remedy for all: trainings have no --size."""
    sizes = ", ".join("{}x{}".format(*array.size) for array in arrays)
    if len(arrays) == 1:
        return f"has the size {sizes}; name that size, or none"
    rows, cols = (min(sides) for sides in zip(*(array.size for array in of_all), strict=True))
    return (
        f"has the sizes {sizes}, and one is needed; import again with --size {rows}x{cols}, which "
        "all images have, or, where `kscout evaluate` or `data show` asked, name one as in "
        "--size {}x{}".format(*arrays[0].size)
    )


def _why_no_store(path: Path) -> str:
    if path.name and unfinished_path(path).is_dir():
        return f"{path} is unfinished; repeat the command that makes it, which resumes"
    if not path.exists():
        return f"{path} does not exist; make a store with `kscout data make` or `data import`"
    return f"{path} is not a store: it has no {MANIFEST}; give the folder that `--out` named"
