"""Descriptions of files that kscout does not read, with advice."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

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


def identify(path: Path) -> str | None:
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


def why_no_volumes(place: Path) -> str | None:
    """Return the type of the first unsupported file of a folder, and advice."""
    files = [place] if not place.is_dir() else islice(_files(place), _LOOKED_AT)
    return next((f"{path} is {kind}" for path in files if (kind := identify(path))), None)


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))
