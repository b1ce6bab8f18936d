"""Finding and reading volumes of any format in a folder."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

import numpy as np

from kscout.data.formats import ImageScan, check_memory, printable, reading
from kscout.data.formats.dicom import dicom_files, is_dicom
from kscout.data.formats.raw import RawScan
from kscout.data.journal import JOURNAL
from kscout.data.manifest import MANIFEST
from kscout.errors import DataError
from kscout.names import FORMATS, RAW_FORMATS, Plane, import_target
from kscout.names.entries import FormatEntry

S = TypeVar("S", ImageScan, RawScan)

SUFFIXES, RAW_SUFFIXES = (
    {
        suffix: name
        for name, entry in formats.items()
        if not entry.is_series
        for suffix in entry.suffixes
    }
    for formats in (FORMATS, RAW_FORMATS)
)
"""Formats in which one file is a volume, of images and of k-space, by suffix."""

_HEAD_BYTES = 4096
"""First bytes of a store's manifest."""


@final
@dataclass(frozen=True)
class VolumeFile:
    """One volume on disk that has not been read."""

    name: str
    path: Path
    """The file; for a DICOM series its folder."""
    format: str
    """Name in `kscout.names.FORMATS`, or in `RAW_FORMATS`."""
    parts: tuple["VolumeFile", ...] = ()
    """Files that are joined to this volume, in the order of its slices."""

    @property
    def files(self) -> list[Path]:
        """The files that the volume is read from."""
        if self.parts:
            return [file for part in self.parts for file in part.files]
        if self.format == "bart":
            return [self.path, self.path.with_suffix(".hdr")]
        return dicom_files(self.path) if self.format == "dicom" else [self.path]


def find_volumes(source: Path, *, raw: bool = False, group: str | None = None) -> list[VolumeFile]:
    """Return the volumes in a folder and its subfolders, sorted by name; or the single file.

    A volume has the name of its file, or its path if two files share a name. Stores are skipped,
    because their slices are already prepared.

    Args:
        source: the folder or file.
        raw: find k-space instead of images.
        group: regular expression that finds the name of the volume in the path of a file, in the
            source; files of one name are joined. None: each file is a volume.
    """
    format_of = _raw_format_of if raw else _format_of
    if not source.is_dir():
        kind = format_of(source)
        return [VolumeFile(printable(source.name), source, kind)] if kind else []
    found = sorted(set(_walk(source, format_of)))
    counts = Counter(path.name for path, _ in found)
    volumes = [
        VolumeFile(
            printable(path.name if counts[path.name] == 1 else relative(path, source)), path, kind
        )
        for path, kind in found
    ]
    if group is not None:
        volumes = _joined(volumes, source, group)
    return sorted(volumes, key=lambda volume: volume.name)


def _joined(volumes: list[VolumeFile], source: Path, group: str) -> list[VolumeFile]:
    """Join files to volumes, in natural order: z2 before z10."""
    found: dict[str, list[VolumeFile]] = {}
    for volume in sorted(volumes, key=lambda one: _natural(relative(one.path, source))):
        match = re.search(group, relative(volume.path, source))
        name = "" if match is None else match[match.lastindex or 0]
        if not name:
            raise DataError(
                f"--group {group!r} finds no name of a volume in "
                f"{relative(volume.path, source)!r}; change it to match every file"
            )
        found.setdefault(name, []).append(volume)
    return [
        VolumeFile(name, parts[0].path, parts[0].format, tuple(parts))
        for name, parts in found.items()
    ]


def _natural(text: str) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", text)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def find_stores(source: Path) -> list[str]:
    """Return the relative paths of stores in a folder and its subfolders."""
    folders = _folders(source) if source.is_dir() else ()
    return sorted(relative(folder, source) for folder, holds_store in folders if holds_store)


def is_store(folder: Path) -> bool:
    """Return whether a folder is a store; other folders may also have a manifest.json."""
    if not any(folder.glob("*_*x*.npy")):
        return False
    if (folder / JOURNAL).is_file():
        return True
    head = b""
    with suppress(OSError), (folder / MANIFEST).open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return all(key in head for key in (b'"schema_version"', b'"kind"', b'"splits"'))


def read_volume(
    volume: VolumeFile,
    *,
    key: str | None = None,
    plane: Plane = "axial",
    axes: tuple[str, ...] | None = None,
) -> ImageScan:
    """Return the images of a volume, its acquisition and its spacing."""
    given = {"key": key, "plane": plane, "axes": axes}
    if volume.parts:
        check_memory(volume.path, sum(file.stat().st_size for file in volume.files))
        scans = [_read(ImageScan, FORMATS[part.format], part.path, given) for part in volume.parts]
        for part, scan in zip(volume.parts, scans, strict=True):
            if (size := scan.images.shape[1:]) != (first := scans[0].images.shape[1:]):
                raise DataError(
                    f"{part.path} has images of {size[0]}x{size[1]}, and {volume.path} of the same "
                    f"volume has {first[0]}x{first[1]}; change --group, or remove one of them"
                )
        return scans[0]._replace(images=np.concatenate([scan.images for scan in scans]))
    return _read(ImageScan, FORMATS[volume.format], volume.path, given)


def read_raw(
    volume: VolumeFile,
    *,
    key: str | None = None,
    axes: tuple[str, ...] | None = None,
    header: Path | None = None,
) -> RawScan:
    """Return the k-space of a volume, whose slices are read on request.

    Args:
        volume: a result of `find_volumes`.
        key: name of the k-space inside its file.
        axes: names of its axes, if its format does not specify them.
        header: header for an ISMRMRD file without one.
    """
    given = {"key": key, "axes": axes, "header": header}
    return _read(RawScan, RAW_FORMATS[volume.format], volume.path, given)


def _read(kind: type[S], entry: FormatEntry, path: Path, given: Mapping[str, object]) -> S:
    """Return the result of a reader, which receives the applicable options."""
    with reading(path, entry.summary):
        # Opening a pipe would block until something writes to it.
        if not path.is_file() and not (path.is_dir() and entry.is_series):
            raise DataError(f"{path} is no regular file; leave it out of the source")
        read: Callable[..., S] = import_target(entry.target, of="reader")
        scan = read(path, **{name: given[name] for name in entry.options})
        spacing = scan.spacing_mm
        if spacing is not None and not all(0 < step < math.inf for step in spacing):
            spacing = None
        return scan._replace(acquisition=printable(scan.acquisition), spacing_mm=spacing)


def relative(path: Path, source: Path) -> str:
    """Return the path of a volume relative to the source, or its name if it is the source."""
    return printable(path.relative_to(source).as_posix() if path != source else path.name)


def _format_of(path: Path) -> str | None:
    if path.name.startswith("."):
        return None
    name = path.name.lower()
    known = next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)
    return "dicom" if known is None and is_dicom(path) else known


def _raw_format_of(path: Path) -> str | None:
    name = path.name.lower()
    found = (kind for suffix, kind in RAW_SUFFIXES.items() if name.endswith(suffix))
    return None if name.startswith(".") else next(found, None)


def _walk(source: Path, format_of: Callable[[Path], str | None]) -> Iterator[tuple[Path, str]]:
    """Yield volumes and their formats, without those in stores."""
    for folder, holds_store in _folders(source):
        for path in () if holds_store else folder.iterdir():
            if not path.is_dir() and (kind := format_of(path)):
                yield folder if kind == "dicom" else path, kind


def _folders(source: Path) -> Iterator[tuple[Path, bool]]:
    """Yield a folder and its subfolders, and whether each is a store, which is not entered.

    Cyclic links are followed once.
    """
    folders, seen = [source], set()
    while folders:
        folder = folders.pop()
        if (place := folder.resolve()) in seen:
            continue
        seen.add(place)
        yield folder, (holds_store := is_store(folder))
        if not holds_store:
            found = (path for path in folder.iterdir() if path.is_dir())
            folders += [path for path in found if not path.name.startswith(".")]
