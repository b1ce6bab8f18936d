"""Writing a store volume by volume, in bounded memory, so that a killed run can go on."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import torch
from filelock import lock_descriptor

from kscout.config import read
from kscout.data.kinds import IMAGES, Kind
from kscout.data.manifest import MANIFEST, ArrayRecord, Manifest, VolumeRecord, write_manifest
from kscout.data.slices import slice_peaks
from kscout.data.store import Store, unfinished_path
from kscout.errors import ConfigError, DataError
from kscout.files import checksum

_JOURNAL = "journal.jsonl"
_HEADER_BYTES = 128


@final
class StoreWriter:
    """Grows a store in a hidden folder beside `path` and moves it there when it is whole.

    A journal names every volume whose pixels are on disk, so that the same recipe goes on where a
    killed process stopped. Volumes must come in the same order each time.
    """

    def __init__(
        self, path: Path, recipe: dict[str, Any], *, name: str = "", kind: Kind = IMAGES
    ) -> None:
        """Start a store, or go on with the unfinished one of the same recipe.

        Args:
            path: the folder that the store will be.
            recipe: JSON values from which the store can be made again.
            name: what tables call the data set; the folder's name where empty.
            kind: what the slices are.
        """
        self.path, self.kind = path, kind
        self.name = name or path.name
        self.recipe: dict[str, Any] = json.loads(json.dumps(recipe))
        self._check_path()
        self._folder = unfinished_path(path)
        self._records: dict[tuple[str, str], VolumeRecord] = {}
        self._shapes: dict[tuple[str, tuple[int, int]], tuple[int, ...]] = {}
        self.left_out: dict[str, str] = {}
        """Why sources could not be used, by their names."""
        self.n_blank = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        self._journal = (self._folder / _JOURNAL).open("a+b")
        try:
            if not lock_descriptor(self._journal.fileno(), blocking=False):
                raise DataError(f"another process is writing {path}; wait until it is done")
            self._recover()
        except DataError:
            self._journal.close()
            raise

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Discard what bad input spoiled; keep what an interruption left, to go on with it."""
        if isinstance(error, DataError | ConfigError):
            self.discard()
        self.close()

    def holds(self, split: str, volume: str) -> bool:
        """Say whether the volume is in the store already, from before an interruption."""
        return (split, volume) in self._records

    def volumes(self, split: str) -> list[str]:
        """Return the volumes of a split that are in the store so far."""
        return [volume for where, volume in self._records if where == split]

    def n_slices(self, split: str) -> int:
        """Return how many slices of a split are in the store so far."""
        return sum(shape[0] for (where, _), shape in self._shapes.items() if where == split)

    @property
    def peak(self) -> float:
        """The largest `data_range` of the volumes that are in the store so far."""
        return max((record.data_range for record in self._records.values()), default=0.0)

    def append(
        self,
        split: str,
        volume: str,
        stored: np.ndarray,
        *,
        slices: Sequence[int] | None = None,
        source: str = "",
        acquisition: str = "",
        n_blank: int = 0,
    ) -> None:
        """Add the slices of one volume; they are on disk when this returns.

        Args:
            split: train, val or test.
            volume: its name in the split.
            stored: the slices that are kept, as the store's kind lays them out.
            slices: their numbers in the source; counted from 0 where not given.
            source: the file, or the generator, that they come from.
            acquisition: its contrast.
            n_blank: how many slices were left out because they show nothing; `self.n_blank`
                counts those of all volumes.
        """
        if self.holds(split, volume):
            raise DataError(
                f"volume {volume!r} comes twice in split {split!r}; rename one of the files"
            )
        self.kind.check(stored)
        stored = np.ascontiguousarray(stored)
        peaks = slice_peaks(self.kind.to_images(torch.from_numpy(stored)))
        n_rows, n_cols = stored.shape[-2:]
        record = VolumeRecord(
            split=split,
            volume=volume,
            size=(n_rows, n_cols),
            slices=tuple(range(len(stored)) if slices is None else slices),
            data_range=float(peaks.max()),
            source=source,
            acquisition=acquisition,
            selectable=(0, n_cols),
        )
        self._write_slices(record, stored)
        self._write_line({"volume": asdict(record), "n_blank": n_blank, "shape": stored.shape})
        self._remember(record, stored.shape, n_blank)

    def leave_out(self, source: str, reason: str) -> None:
        """Record that a source could not be used, where it is not known from before."""
        if source not in self.left_out:
            self._write_line({"left_out": {"source": source, "reason": reason}})
            self.left_out[source] = reason

    def finish(self, warnings: Sequence[str] = ()) -> Store:
        """Write the manifest and let the store appear at its path, whole."""
        if not self._records:
            raise DataError(f"no slices to store in {self.path}; check the source and the filters")
        manifest = Manifest(
            name=self.name,
            recipe=self.recipe,
            volumes=tuple(self._records.values()),
            arrays=self._close_arrays(),
            left_out=tuple({"source": s, "reason": r} for s, r in self.left_out.items()),
            warnings=tuple(warnings),
            kind=self.kind.word,
        )
        write_manifest(self._folder, manifest)
        self.close()
        (self._folder / _JOURNAL).unlink()
        if self.path.is_dir():
            self.path.rmdir()
        self._folder.replace(self.path)
        return Store.open(self.path)

    def discard(self) -> None:
        """Remove what was written: nothing of the store remains."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Release the files; an unfinished store stays and can be resumed."""
        self._journal.close()

    def _check_path(self) -> None:
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        found = "exists already"
        if (self.path / MANIFEST).is_file():
            found += f" ({_difference(Store.open(self.path).manifest.recipe, self.recipe)})"
        raise DataError(f"{self.path} {found}; choose another --out, or delete it to make it again")

    def _recover(self) -> None:
        (self._folder / MANIFEST).unlink(missing_ok=True)
        self._journal.seek(0)
        lines = self._journal.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            # The process was killed inside this line: its volume is written again.
            self._journal.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        if not lines:
            self._write_line({"recipe": self.recipe})
            return
        head, *entries = [json.loads(line) for line in lines]
        if not _is_alike(head["recipe"], self.recipe):
            raise DataError(
                f"{self.path} was begun with other settings "
                f"({_difference(head['recipe'], self.recipe)}) and is unfinished; run that command "
                f"again, or delete {self._folder} to start afresh"
            )
        for entry in entries:
            if "volume" in entry:
                record = read(VolumeRecord, entry["volume"])
                shape = entry.get("shape", (len(record.slices), *record.size))
                self._remember(record, tuple(shape), entry.get("n_blank", 0))
            else:
                self.left_out[entry["left_out"]["source"]] = entry["left_out"]["reason"]
        if self.left_out and _refuses_bad(self.recipe):
            raise DataError(
                f"{self.path} is unfinished and has left out {next(iter(self.left_out))}; go on "
                f"with --skip-bad, or delete {self._folder} to start afresh"
            )

    def _remember(self, record: VolumeRecord, shape: tuple[int, ...], n_blank: int) -> None:
        self.n_blank += n_blank
        self._records[record.split, record.volume] = record
        self._shapes[record.split, record.size] = (self._n_before(record) + shape[0], *shape[1:])

    def _n_before(self, record: VolumeRecord) -> int:
        return self._shapes.get((record.split, record.size), (0,))[0]

    def _write_line(self, value: dict[str, Any]) -> None:
        self._journal.write(json.dumps(value).encode() + b"\n")
        _flush(self._journal)

    def _write_slices(self, record: VolumeRecord, stored: np.ndarray) -> None:
        known = self._shapes.get((record.split, record.size), stored.shape)
        if known[1:] != stored.shape[1:]:
            raise DataError(
                f"slices of {record.volume!r} are of shape {stored.shape[1:]}, others of split "
                f"{record.split!r} and the same matrix of {known[1:]}; store them apart"
            )
        file = self._folder / _array_file(record.split, record.size)
        with file.open("r+b" if file.exists() else "w+b") as handle:
            # Beyond this point lies only what a killed process wrote without journaling it.
            handle.truncate(_HEADER_BYTES + self._n_before(record) * stored[0].nbytes)
            self._write_header(handle, (0, *stored.shape[1:]))
            handle.seek(0, os.SEEK_END)
            handle.write(stored.data)
            _flush(handle)

    def _close_arrays(self) -> tuple[ArrayRecord, ...]:
        arrays, kind = [], self.kind
        for (split, size), shape in self._shapes.items():
            file = self._folder / _array_file(split, size)
            with file.open("r+b") as handle:
                self._write_header(handle, shape)
                n_bytes = int(np.prod(shape)) * np.dtype(kind.dtype).itemsize
                handle.truncate(_HEADER_BYTES + n_bytes)
                _flush(handle)
            arrays.append(
                ArrayRecord(file.name, split, shape, kind.axes, kind.dtype, sha256=checksum(file))
            )
        return tuple(arrays)

    def _write_header(self, handle: BinaryIO, shape: tuple[int, ...]) -> None:
        """Write a `.npy` header, in which numpy leaves room for the number of slices to grow."""
        handle.seek(0)
        descr = np.dtype(self.kind.dtype).newbyteorder("<").str
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)


def finished_store(path: Path, recipe: dict[str, Any]) -> Store | None:
    """Return the store at `path` where the same recipe has made it already."""
    if not (path / MANIFEST).is_file():
        return None
    store = Store.open(path)
    recipe = json.loads(json.dumps(recipe))
    lacks = bool(store.manifest.left_out) and _refuses_bad(recipe)
    return store if _is_alike(store.manifest.recipe, recipe) and not lacks else None


def _refuses_bad(recipe: dict[str, Any]) -> bool:
    return recipe.get("settings", {}).get("skip_bad") is False


def _is_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two recipes store the same slices; `--skip-bad` matters for bad input only."""
    return _deciding(one) == _deciding(other)


def _deciding(recipe: dict[str, Any]) -> dict[str, Any]:
    settings = recipe.get("settings", {})
    return {**recipe, "settings": {k: v for k, v in settings.items() if k != "skip_bad"}}


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Name the first setting in which two recipes differ."""
    if not _is_alike(there, here):
        there, here = _deciding(there), _deciding(here)
    one, other = ({**recipe, **recipe.get("settings", {})} for recipe in (there, here))
    for name in dict.fromkeys([*one, *other]):
        if name not in ("settings", "files_sha256") and one.get(name) != other.get(name):
            return f"{name} is {one.get(name)!r} there and {other.get(name)!r} here"
    return "made of other files" if there != here else "made by the same settings"


def _array_file(split: str, size: tuple[int, int]) -> str:
    return f"{split}_{size[0]}x{size[1]}.npy"


def _flush(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())
