"""Writing a store volume by volume, in bounded memory, so that an interrupted run can resume."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import final

import numpy as np

from kscout.config import read
from kscout.data.formats import printable, reading
from kscout.data.kinds import IMAGES, Kind
from kscout.data.manifest import MANIFEST, Geometry, Manifest, VolumeRecord, write_manifest
from kscout.data.slices import check_peak
from kscout.data.store import Store, unfinished_path
from kscout.data.unfinished import JOURNAL, ArrayFiles, Columns, Journal, VolumePart, room_for
from kscout.errors import ConfigError, DataError
from kscout.files import parse_json
from kscout.json_types import JsonObject

CONTENTS = "contents_sha256"
"""Key of a recipe: hash of the names and contents of the source files."""
_OTHER_FILES = "made from other files, or from files that have changed"

OnVolume = Callable[[int, int, str], None]
"""Called after each volume with the number of completed volumes, the total, and its name."""


@final
class StoreWriter:
    """Writes a store in a hidden folder next to `path` and moves it there when it is complete.

    A journal names every volume whose pixels are on disk, so that the same recipe resumes after
    an interruption. Volumes must come in the same order each time.
    """

    def __init__(
        self, path: Path, recipe: JsonObject, *, kind: Kind = IMAGES, sources: Sequence[Path] = ()
    ) -> None:
        """Start a store, or resume the unfinished store of the same recipe.

        The recipe has JSON values from which the store can be made again. The name of the dataset
        is that of the folder `path`. `sources` are named in messages.
        """
        self.path, self.kind, self._sources = path, kind, sources
        self.recipe: JsonObject = json.loads(json.dumps(recipe))
        self._check_path()
        self._folder = unfinished_path(path)
        self._records: dict[tuple[str, str], VolumeRecord] = {}
        self._arrays = ArrayFiles(self._folder, kind)
        self.left_out: dict[str, str] = {}
        """Reasons why sources could not be imported, by source."""
        self.n_blank = 0
        try:
            self._journal = Journal(self._folder)
        except OSError as error:
            # The hidden folder was not requested by the user.
            error.filename = str(path)
            raise
        try:
            self._take_lock()
            self._recover()
        except DataError:
            self._journal.close()
            raise

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Discard a store that bad input spoiled; an interrupted one stays and can resume."""
        if isinstance(error, DataError | ConfigError):
            self.discard()
        self.close()

    def holds(self, split: str, volume: str) -> bool:
        """Return whether a previous, interrupted run stored the volume."""
        return (split, volume) in self._records

    def volumes(self, split: str) -> list[str]:
        return [volume for where, volume in self._records if where == split]

    @property
    def records(self) -> list[VolumeRecord]:
        return list(self._records.values())

    def append(
        self,
        split: str,
        volume: str,
        stored: np.ndarray | Iterable[VolumePart],
        *,
        slices: Sequence[int] | None = None,
        source: str = "",
        acquisition: str = "",
        n_blank: int = 0,
        geometry: Geometry | None = None,
        selectable: tuple[int, int] | None = None,
    ) -> None:
        """Append the slices of one volume; they are on disk when this returns.

        `stored` has the layout of the store's kind, or is an iterable of parts, of which one is in
        memory at a time; parts carry slice numbers, blanks and measured columns. By default slices
        are counted from 0, and all columns are `selectable`: the first and one past the last of the
        measured matrix. `n_blank` slices were left out because they contain only zeros.
        """
        if self.holds(split, volume):
            raise DataError(
                f"volume {volume!r} occurs twice in split {split!r}; rename one of the files"
            )
        if isinstance(stored, np.ndarray):
            numbers = range(len(stored)) if slices is None else slices
            stored = [VolumePart(stored, tuple(numbers), n_blank)]
        written = self._arrays.write(split, volume, stored)
        check_peak(volume, written.peak)
        n_rows, n_cols = written.shape[-2:]
        record = VolumeRecord(
            split=split,
            volume=volume,
            size=(n_rows, n_cols),
            slices=written.slices,
            data_range=written.peak,
            source=source,
            acquisition=acquisition,
            geometry=geometry,
            **_sampling(written.columns, selectable or (0, n_cols)),
        )
        entry = {"n_blank": written.n_blank, "shape": written.shape, "crc32": written.crc32}
        self._journal.write({"volume": asdict(record), **entry})
        self._register(record, written.shape, written.n_blank)

    def leave_out(self, source: str, reason: str) -> None:
        """Record that a source could not be imported, once per source."""
        if source not in self.left_out:
            self._journal.write({"left_out": {"source": source, "reason": reason}})
            self.left_out[source] = reason

    def finish(
        self, warnings: Sequence[str] = (), *, virtual: tuple[int, int] | None = None
    ) -> Store:
        """Write the manifest and move the complete store to its path."""
        if not self._records:
            raise DataError(f"no slices to store in {self.path}; {self._why_empty()}")
        with room_for(self._folder / MANIFEST):
            manifest = Manifest(
                name=self.path.name,
                recipe=self.recipe,
                volumes=tuple(self._records.values()),
                arrays=self._arrays.close(),
                left_out=tuple({"source": s, "reason": r} for s, r in self.left_out.items()),
                warnings=tuple(warnings),
                kind=self.kind.word,
                target=self.kind.rule,
                virtual=virtual,
            )
            write_manifest(self._folder, manifest)
        self._appear()
        self.close()
        return Store.open(self.path)

    def discard(self) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Release the files; an unfinished store stays and can be resumed."""
        self._journal.close()

    def _why_empty(self) -> str:
        if not self.left_out:
            return "check the source and the filters"
        reasons = list(self.left_out.values())
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"everything was left out: {reasons[0]}{more}"

    def _check_path(self) -> None:
        if self.path.is_symlink() and not self.path.exists():
            raise DataError(f"{self.path} is a link that leads nowhere; choose another --out")
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return
        state = "exists already"
        if (self.path / MANIFEST).is_file():
            manifest = Store.open(self.path).manifest
            reason = _difference(manifest.recipe, self.recipe)
            if reason == _OTHER_FILES:
                reason += self._changed(self.path / MANIFEST, manifest.volumes)
            state += f" ({reason})"
        raise DataError(f"{self.path} {state}; choose another --out, or delete it to make it again")

    def _take_lock(self) -> None:
        if not self._journal.lock():
            raise DataError(f"another process is writing {self.path}; wait until it is done")
        try:
            self._check_path()
        except DataError:
            if not self._journal.n_bytes:
                self.discard()
            raise

    def _appear(self) -> None:
        """Move the complete store to its path, under the lock of the journal."""
        self._folder.replace(self.path)
        (self.path / JOURNAL).unlink(missing_ok=True)

    def _recover(self) -> None:
        (self._folder / MANIFEST).unlink(missing_ok=True)
        lines = self._journal.lines()
        if not lines:
            self._journal.write({"recipe": self.recipe})
            return
        restart = f"delete {self._folder} to start again"
        with reading(self._journal.file, "the journal of a store", advice=restart):
            head, *entries = [parse_json(line) for line in lines]
            if not _is_alike(head["recipe"], self.recipe):
                reason = _difference(head["recipe"], self.recipe)
                if reason == _OTHER_FILES:
                    reason += self._changed(self._journal.file)
                raise DataError(
                    f"{self.path} was begun with other settings ({reason}) and is unfinished; "
                    f"run that command again, or {restart}"
                )
            for entry in entries:
                self._restore(entry, restart)
        if self.left_out and _rejects_bad(self.recipe):
            raise DataError(
                f"{self.path} is unfinished and has left out {next(iter(self.left_out))}; resume "
                f"with --skip-bad, or {restart}"
            )

    def _changed(self, made: Path, volumes: Sequence[VolumeRecord] = ()) -> str:
        """Name a source file that is newer than the file `made`, or one that was removed."""
        files = [file for file in self._sources if file.is_file()]
        newer = [file for file in files if file.stat().st_mtime > made.stat().st_mtime]
        if newer:
            more = f" and {len(newer) - 1} more" if len(newer) > 1 else ""
            return f": {printable(str(newer[0]))}{more} changed since"
        if not (source := Path(str(self.recipe.get("source")))).is_dir():
            return ""
        gone = [one.source for one in volumes if not (source / one.source).exists()]
        return f": {source / gone[0]} was removed since" if gone else ""

    def _restore(self, entry: JsonObject, restart: str) -> None:
        if "volume" not in entry:
            source, reason = (str(entry["left_out"][key]) for key in ("source", "reason"))
            self.left_out[source] = reason
            return
        try:
            record = read(VolumeRecord, entry["volume"], "volume")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        shape = tuple(entry["shape"])
        if (shape[0], *shape[-2:]) != (len(record.slices), *record.size) or min(shape) < 1:
            raise ValueError(f"volume {record.volume!r} has shape {shape}")
        if not self._arrays.has(record, shape, entry["crc32"]):
            file = self._arrays.file(record.split, record.size)
            raise DataError(f"{file} lacks slices that its journal lists; {restart}")
        self._register(record, shape, int(entry["n_blank"]))

    def _register(self, record: VolumeRecord, shape: tuple[int, ...], n_blank: int) -> None:
        self.n_blank += n_blank
        self._records[record.split, record.volume] = record
        self._arrays.keep(record, shape)


def _sampling(columns: Columns, selectable: tuple[int, int]) -> JsonObject:
    """Return the measured columns for a volume's record; by default the selectable ones."""
    if not columns:
        return {"selectable": selectable}
    every = sorted(set().union(*columns))
    alike = len(set(columns)) == 1
    first, end = min(every[0], selectable[0]), max(every[-1] + 1, selectable[1])
    if alike and len(every) == end - first:
        return {"selectable": (first, end)}
    per_slice = {} if alike else {"masks": columns}
    return {"selectable": (first, end), "measured": tuple(every), **per_slice}


def finished_store(
    path: Path, recipe: JsonObject, *, of_0_2: JsonObject | None = None, files: Iterable[Path] = ()
) -> Store | None:
    """Return the finished store at `path` if it was made by the same recipe.

    `of_0_2` is the recipe that version 0.2 wrote, without the contents of `files`; a store with it
    counts if no source file is newer.
    """
    if not (path / MANIFEST).is_file():
        return None
    store = Store.open(path)
    # A previous process was killed just before it removed its temporary files.
    (path / JOURNAL).unlink(missing_ok=True)
    if of_0_2 is not None and CONTENTS not in store.manifest.recipe:
        made = (path / MANIFEST).stat().st_mtime
        is_older = all(file.stat().st_mtime <= made for file in files if file.exists())
        recipe = of_0_2 if is_older else recipe
    recipe = json.loads(json.dumps(recipe))
    lacks = bool(store.manifest.left_out) and _rejects_bad(recipe)
    return store if _is_alike(store.manifest.recipe, recipe) and not lacks else None


def _rejects_bad(recipe: JsonObject) -> bool:
    """Return whether a recipe stops at bad input instead of leaving it out."""
    return recipe.get("settings", {}).get("skip_bad") is False


def _is_alike(one: JsonObject, other: JsonObject) -> bool:
    """Return whether two recipes give the same slices; `--skip-bad` matters only for bad input."""
    return _deciding(one) == _deciding(other)


def _deciding(recipe: JsonObject) -> JsonObject:
    settings = recipe.get("settings", {})
    return {**recipe, "settings": {k: v for k, v in settings.items() if k != "skip_bad"}}


def _difference(there: JsonObject, here: JsonObject) -> str:
    """Name the first setting in which two recipes differ."""
    if not _is_alike(there, here):
        there, here = _deciding(there), _deciding(here)
    one, other = ({**recipe, **recipe.get("settings", {})} for recipe in (there, here))
    for name in dict.fromkeys([*one, *other]):
        if name not in ("settings", CONTENTS, "files_sha256") and one.get(name) != other.get(name):
            return f"{name} is {one.get(name)!r} there and {other.get(name)!r} here"
    if there == here:
        return "made with the same settings"
    return _OTHER_FILES
