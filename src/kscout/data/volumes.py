"""Finding volumes in a folder and reading them, whatever their format."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kscout.data.formats import Stack
from kscout.data.formats.dicom import dicom_files, is_dicom
from kscout.names import FORMATS, Plane, import_target

SUFFIXES = {
    suffix: name
    for name, entry in FORMATS.items()
    if not entry.is_series
    for suffix in entry.suffixes
}
"""Formats of which one file is a volume, by the end of its name."""


@final
@dataclass(frozen=True)
class VolumeFile:
    """One volume on disk, not read yet."""

    name: str
    path: Path
    """The file; for a DICOM series its folder."""
    format: str
    """Its name in `kscout.names.FORMATS`."""

    @property
    def n_bytes(self) -> int:
        files = dicom_files(self.path) if self.format == "dicom" else [self.path]
        return sum(file.stat().st_size for file in files)


def find_volumes(source: Path) -> list[VolumeFile]:
    """Return the volumes in a folder and the folders below, sorted by name; or the one file.

    A volume is called by its file's name, and by its path where two files share a name.
    """
    if source.is_file():
        kind = _format_of(source)
        return [VolumeFile(source.name, source, kind)] if kind else []
    found = sorted(set(_walk(source)))
    counts = Counter(path.name for path, _ in found)
    volumes = [
        VolumeFile(
            path.name if counts[path.name] == 1 else path.relative_to(source).as_posix(), path, kind
        )
        for path, kind in found
    ]
    return sorted(volumes, key=lambda volume: volume.name)


def read_volume(
    volume: VolumeFile, *, key: str | None = None, plane: Plane = "axial"
) -> tuple[Stack, str]:
    """Return the images of a volume and its acquisition.

    Args:
        volume: what `find_volumes` found.
        key: name of the images inside HDF5 and `.npz` files.
        plane: along which NIfTI volumes are cut.
    """
    entry = FORMATS[volume.format]
    given = {"key": key, "plane": plane}
    read = import_target(entry.target, of="reader")
    return read(volume.path, **{name: given[name] for name in entry.options})


def _format_of(path: Path) -> str | None:
    if path.name.startswith("."):
        return None
    name = path.name.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    has_series = False
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        kind = _format_of(path)
        if path.is_dir():
            yield from _walk(path)
        elif kind is not None:
            yield path, kind
        elif not has_series and is_dicom(path):
            has_series = True
            yield folder, "dicom"
