"""Finding and reading volumes of any format in a folder, and describing unsupported files."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar, final

import numpy as np

from kscout.data.formats import ImageScan, check_memory, printable, reading
from kscout.data.formats.dicom import dicom_files, is_dicom
from kscout.data.formats.raw import RawScan
from kscout.data.importing.settings import ImportSettings
from kscout.data.manifest import MANIFEST
from kscout.data.unfinished import JOURNAL
from kscout.errors import DataError
from kscout.names import FORMATS, RAW_FORMATS, import_target
from kscout.names.table import FormatEntry

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
        if self.parts:
            return [file for part in self.parts for file in part.files]
        if self.format == "bart":
            return [self.path, self.path.with_suffix(".hdr")]
        return dicom_files(self.path) if self.format == "dicom" else [self.path]


def find_volumes(source: Path, *, raw: bool = False, group: str | None = None) -> list[VolumeFile]:
    """Return the volumes in a folder and its subfolders, sorted by name; or the single file.

    A volume has the name of its file, or its path if two files share a name. Stores are skipped,
    because their slices are already prepared. `group` is a regular expression that finds the name
    of the volume in the path of a file; files of one name are joined.
    """
    if not source.is_dir():
        kind = _format_of(source, raw=raw)
        return [VolumeFile(printable(source.name), source, kind)] if kind else []
    found = sorted(
        {
            (folder if kind == "dicom" else path, kind)
            for folder, holds_store in _folders(source)
            for path in (() if holds_store else folder.iterdir())
            if not path.is_dir() and (kind := _format_of(path, raw=raw))
        }
    )
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


def read_volume(volume: VolumeFile, settings: ImportSettings | None = None) -> ImageScan:
    """Return the images of a volume, its acquisition and its spacing."""
    settings = settings or ImportSettings()
    if not volume.parts:
        return _read(ImageScan, FORMATS[volume.format], volume.path, settings)
    check_memory(volume.path, sum(file.stat().st_size for file in volume.files))
    scans = [_read(ImageScan, FORMATS[part.format], part.path, settings) for part in volume.parts]
    for part, scan in zip(volume.parts, scans, strict=True):
        if (size := scan.images.shape[1:]) != (first := scans[0].images.shape[1:]):
            raise DataError(
                f"{part.path} has images of {size[0]}x{size[1]}, and {volume.path} of the same "
                f"volume has {first[0]}x{first[1]}; change --group, or remove one of them"
            )
    return scans[0]._replace(images=np.concatenate([scan.images for scan in scans]))


def read_raw(volume: VolumeFile, settings: ImportSettings) -> RawScan:
    """Return the k-space of a volume, whose slices are read on request."""
    return _read(RawScan, RAW_FORMATS[volume.format], volume.path, settings)


def _read(kind: type[S], entry: FormatEntry, path: Path, settings: ImportSettings) -> S:
    """Return the result of a reader, which receives the applicable options."""
    with reading(path, entry.summary):
        # Opening a pipe would block until something writes to it.
        if not path.is_file() and not (path.is_dir() and entry.is_series):
            raise DataError(f"{path} is no regular file; leave it out of the source")
        read: Callable[..., S] = import_target(entry.target, of="reader")
        scan = read(path, **{name: getattr(settings, name) for name in entry.options})
        spacing = scan.spacing_mm
        if spacing is not None and not all(0 < step < math.inf for step in spacing):
            spacing = None
        return scan._replace(acquisition=printable(scan.acquisition), spacing_mm=spacing)


def relative(path: Path, source: Path) -> str:
    """Return the path of a volume relative to the source, or its name if it is the source."""
    return printable(path.relative_to(source).as_posix() if path != source else path.name)


def _format_of(path: Path, *, raw: bool) -> str | None:
    if path.name.startswith("."):
        return None
    suffixes, name = RAW_SUFFIXES if raw else SUFFIXES, path.name.lower()
    known = next((kind for suffix, kind in suffixes.items() if name.endswith(suffix)), None)
    return "dicom" if known is None and not raw and is_dicom(path) else known


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


_RAW = (
    "raw k-space of {}; convert it to MRD, or save it as an array of complex numbers (numpy.save) "
    "and name its axes, as in --axes slice,coil,row,col"
)
_IMAGES = "an image of {}; convert it to NIfTI"
_PICTURE = "a picture; put the slices of a volume into one array slice x row x column (numpy.save)"
_PACKED = "an archive; unpack it"

_BY_SUFFIX = {
    ".7": _RAW.format("a GE scanner (P-file)"),
    ".raw": _RAW.format("a scanner"),
    ".nrrd": _IMAGES.format("3D Slicer (NRRD)"),
    ".nhdr": _IMAGES.format("3D Slicer (NRRD)"),
    ".mha": _IMAGES.format("ITK (MetaImage)"),
    ".mhd": _IMAGES.format("ITK (MetaImage)"),
    ".mgz": _IMAGES.format("FreeSurfer"),
    ".mgh": _IMAGES.format("FreeSurfer"),
    ".mnc": _IMAGES.format("MINC"),
    ".rec": _IMAGES.format("a Philips scanner (PAR/REC)"),
    ".img": _IMAGES.format("Analyze, or of a pair .hdr and .img"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif"), _PICTURE),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz", ".7z", ".xz", ".bz2"), _PACKED),
}

_BY_CONTENT = (
    (0, b"\x89HDF\r\n", "HDF5; let its name end in .h5, and name its images with --key"),
    (512, b"\x89HDF\r\n", "HDF5; let its name end in .h5, and name its images with --key"),
    (0, b"\x93NUMPY", "an array of NumPy; let its name end in .npy"),
    (344, b"n+1\0", "NIfTI; let its name end in .nii"),
    (4, b"n+2\0", "NIfTI; let its name end in .nii"),
)
"""Offset, magic bytes and description, independent of the name."""

_LOOKED_AT = 2000
"""Largest number of files of a folder that are examined."""


def why_no_volumes(place: Path) -> str | None:
    """Return the type of the first unsupported file of a folder, and advice."""
    files = [place] if not place.is_dir() else islice(_files(place), _LOOKED_AT)
    return next((f"{path} is {kind}" for path in files if (kind := _unsupported(path))), None)


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def _unsupported(path: Path) -> str | None:
    """Return the type of a file and advice, if known."""
    if not path.is_file():
        return "no regular file; name files and folders of volumes" if path.exists() else None
    head = b""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(520)
    for offset, magic, kind in _BY_CONTENT:
        if head[offset : offset + len(magic)] == magic:
            return kind
    return _BY_SUFFIX.get(path.suffix.lower())
