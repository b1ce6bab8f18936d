"""Finding volumes in a folder and reading them, whatever their format."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
from jaxtyping import Float32

from kscout.data.dicom import dicom_files, is_dicom, read_dicom_series
from kscout.data.fastmri import read_hdf5
from kscout.data.nifti import Plane, read_nifti
from kscout.errors import DataError

Format = Literal["hdf5", "nifti", "dicom", "numpy"]

SUFFIXES: dict[str, Format] = {
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".nii": "nifti",
    ".nii.gz": "nifti",
    ".npy": "numpy",
    ".npz": "numpy",
}

# What numpy and zipfile raise on a damaged `.npy` or `.npz`; an unknown compression is the last.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError),
)


@final
@dataclass(frozen=True)
class VolumeFile:
    """One volume on disk, not read yet."""

    name: str
    path: Path
    """The file; for a DICOM series its folder."""
    format: Format

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
) -> tuple[Float32[np.ndarray, "slice row col"], str]:
    """Return the images of a volume and its acquisition.

    Args:
        volume: what `find_volumes` found.
        key: name of the images inside HDF5 and `.npz` files.
        plane: along which NIfTI volumes are cut.
    """
    match volume.format:
        case "hdf5":
            return read_hdf5(volume.path, key)
        case "nifti":
            return read_nifti(volume.path, plane)
        case "dicom":
            return read_dicom_series(volume.path)
        case "numpy":
            return read_numpy(volume.path, key), ""


def read_numpy(path: Path, key: str | None = None) -> Float32[np.ndarray, "slice row col"]:
    """Return a stack of real images from `.npy`, or from the one array (or `key`) of `.npz`."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                # A member that is no array comes out as bytes.
                stack = np.asarray(loaded[_only_key(path, key, loaded.files)])
        else:
            stack = loaded
    except _UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read as NumPy arrays ({error}); save it again with numpy.save, or "
            "leave it out with --skip-bad"
        ) from error
    if np.iscomplexobj(stack) or stack.ndim not in (2, 3) or stack.dtype.kind not in "fiub":
        raise DataError(
            f"{path} holds {stack.dtype} of shape {stack.shape} instead of real images slice x "
            "row x column; save magnitudes, or leave it out with --skip-bad"
        )
    images = stack.astype(np.float32)
    return images if images.ndim == 3 else images[None]


def _only_key(path: Path, key: str | None, keys: list[str]) -> str:
    if key is None and len(keys) == 1:
        return keys[0]
    if key not in keys:
        raise DataError(f"{path} holds the arrays {', '.join(keys)}; name one of them with --key")
    return key


def _format_of(path: Path) -> Format | None:
    if path.name.startswith("."):
        return None
    name = path.name.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def _walk(folder: Path) -> Iterator[tuple[Path, Format]]:
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
