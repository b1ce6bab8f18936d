"""Files that are dropped onto the page: read where nobody else looks, and never by their names."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from kscout.data.formats import LARGEST_SIDE, Scan, printable, reading
from kscout.data.importing.images import prepare_images
from kscout.data.importing.settings import ImportSettings
from kscout.data.importing.volumes import VolumeFile, find_volumes, read_volume
from kscout.data.slices import SliceSet
from kscout.errors import DataError
from kscout.names import FORMATS

_PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF"}
_PICTURES |= {".tiff": "TIFF", ".gif": "GIF", ".webp": "WEBP"}
_VOLUMES = [FORMATS[name] for name in ("nifti", "dicom", "numpy")]
"""Not HDF5: a file of it may point to other files."""
_SUFFIXES = (*_PICTURES, *(suffix for one in _VOLUMES for suffix in one.suffixes))
_MOST_PIXELS = 2**24
"""Of all slices that are kept of a file, at the size at which they are acquired."""
_LONGEST = 80
"""Characters of a name that are shown."""


def read_dropped(content: bytes, name: str, size: tuple[int, int]) -> SliceSet:
    """Return the slices of a file, brought to a size by shrinking or magnifying.

    Args:
        content: of the file.
        name: that a browser tells, of which the ending alone is used, and the rest shown.
        size: rows and columns.
    """
    shown = printable(name.replace("\\", "/").rpartition("/")[2])[:_LONGEST] or "a file"
    ending = next((one for one in _SUFFIXES if name.lower().endswith(one)), "")
    with TemporaryDirectory(prefix="kscout-") as folder:
        path = Path(folder) / f"dropped{ending}"
        path.write_bytes(content)
        try:
            read: Callable[[Path], tuple[VolumeFile, Scan]]
            read = _picture if ending in _PICTURES else _volume
            kept, numbers = _fitted(*read(path), size)
        except DataError as error:
            raise DataError(str(error).replace(str(path), shown)) from error
    images = torch.from_numpy(kept)
    return SliceSet.from_images(images, [shown] * len(kept), slices=numbers, name=shown)


def _volume(path: Path) -> tuple[VolumeFile, Scan]:
    found = find_volumes(path)
    if not found:
        known = ", ".join(one.summary for one in _VOLUMES)
        raise DataError(f"{path} is none of these: {known}, or a picture; drop another file")
    return found[0], read_volume(found[0])


def _picture(path: Path) -> tuple[VolumeFile, Scan]:
    kinds = tuple(dict.fromkeys(_PICTURES.values()))
    with reading(path, "a picture", "save it again"), Image.open(path, formats=kinds) as picture:
        if max(picture.size) > LARGEST_SIDE:
            raise DataError(f"{path} has more than {LARGEST_SIDE} pixels on a side; shrink it")
        # More than 8 bits are kept; colors become grays.
        gray = picture.convert("F" if picture.mode.startswith(("I", "F")) else "L")
        pixels = np.asarray(gray, dtype=np.float32)
    return VolumeFile(path.name, path, "picture"), Scan(pixels[None])


def _fitted(volume: VolumeFile, scan: Scan, size: tuple[int, int]) -> tuple[np.ndarray, list[int]]:
    """Return slices that show all of an image at a size, without the blank ones."""
    n_slices, *found = scan.images.shape
    n_kept = min(n_slices, max(1, _MOST_PIXELS // (size[0] * size[1])))
    first = (n_slices - n_kept) // 2
    if not all(found):
        raise DataError(f"{volume.path} has images without a pixel; drop another file")
    scale = max(length / wanted for length, wanted in zip(found, size, strict=True))
    if not 0.01 <= scale <= 100:
        raise DataError(f"{volume.path} has images of {found[0]}x{found[1]}; drop another file")
    # In pixels, whatever the file tells in mm: all of the image is to be seen.
    scan = scan._replace(images=scan.images[first : first + n_kept], spacing_mm=(1.0, 1.0))
    settings = ImportSettings(size=size, pad=size, resample=(scale, scale), absolute=True)
    with reading(volume.path, "images"):
        kept, _, _ = prepare_images(scan, volume, settings)
    shown = np.flatnonzero(kept.any(axis=(1, 2)))
    return kept[shown], (shown + first).tolist()
