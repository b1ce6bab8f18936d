"""fastMRI's HDF5 volumes (arXiv:1811.08839)."""

import logging
import math
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from kscout.data import formats
from kscout.data.formats import (
    LARGEST_DEFLATION,
    ImageScan,
    check_size,
    complex_advice,
    listed,
    ordered,
    printable,
)
from kscout.data.formats.ismrmrd_header import Encoding, read_header
from kscout.errors import DataError
from kscout.files import reason_of

_LOG = logging.getLogger(__name__)
LARGEST_HEAP = 2**26
"""Largest heap of texts, in bytes, that is checked."""
TARGET_KEYS = ("reconstruction_esc", "reconstruction_rss")
"""Datasets of single-coil (knee) and multi-coil (brain) targets."""


def read_hdf5(path: Path, key: str | None = None, axes: tuple[str, ...] | None = None) -> ImageScan:
    """Return the target images and the acquisition of a volume; other datasets are optional."""
    n_axes = 3 if axes is None else len(axes)
    with h5py.File(path, "r") as file:
        data, name = None, key or ""
        for name in (key,) if key else TARGET_KEYS:
            if (data := find_dataset(file, path, name)) is not None:
                break
        if data is None:
            raise DataError(_no_target(file, path, key))
        if data.shape is None or len(data.shape) != n_axes or data.dtype.kind not in "fiu":
            advice = "name another dataset with --key, or all of its axes with --axes"
            if is_complex(data):
                advice = complex_advice(len(data.shape or ()))
            raise DataError(
                f"{path} holds {name} as {data.dtype} of shape {data.shape} instead of real "
                f"images slice x row x column; {advice}"
            )
        check_size(path, data.shape, data.dtype)
        check_chunks(data, path)
        images = data[()].astype(np.float32, copy=False)
        acquisition = text_attribute(file, "acquisition")
        encoding = encoding_of(file, path) if name in TARGET_KEYS else None
    space = encoding and encoding.reconstructed
    images = ordered(images, axes, path) if axes else images
    return ImageScan(images, acquisition, space and space.spacing_mm)


def is_real(path: Path, key: str | None) -> bool:
    """Return whether the images that `read_hdf5` would read are real."""
    # The reader reports files that cannot be read.
    with suppress(Exception), h5py.File(path, "r") as file:
        found = [find_dataset(file, path, name) for name in ((key,) if key else TARGET_KEYS)]
        return any(data is not None and data.dtype.kind in "fiu" for data in found)
    return False


def acquisition_in(path: Path) -> str | None:
    """Return the attribute of a file that names its acquisition; None if it has none."""
    # Opening a pipe would block.
    if not path.is_file():
        return None
    with suppress(Exception), h5py.File(path, "r") as file:
        return text_attribute(file, "acquisition") or None
    return None


def text_attribute(file: h5py.File, name: str) -> str:
    """Return an attribute of a file as text, of any type; empty if missing."""
    value = file.attrs.get(name, "")
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def find_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """Return a dataset whose values are in this file; None if there is none."""
    place = file
    for part in name.strip("/").split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if link is None:
            return None
        # Not followed, because it may lead to any file of this machine.
        if not isinstance(link, h5py.HardLink):
            raise DataError(
                f"{path} contains {name} as a link to {getattr(link, 'path', 'elsewhere')}; copy "
                "the images into the file"
            )
        place = place[part]
    if not isinstance(place, h5py.Dataset):
        raise DataError(f"{path} contains {name} as a group; name a dataset in it with --key")
    if place.external or place.is_virtual:
        raise DataError(
            f"{path} contains {name} without its values, which are in other files; copy the images "
            "into the file"
        )
    return place


def datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return the datasets of a file and its groups by path; links are not followed."""
    found: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file.visititems(visit)
    return found


def is_complex(data: h5py.Dataset) -> bool:
    """Return whether a dataset has complex values, or pairs `real` and `imag`."""
    return data.dtype.kind == "c" or {"real", "imag"} <= set(data.dtype.names or ())


def check_heap(data: h5py.Dataset, path: Path) -> None:
    """Raise an error for text with a damaged heap index: HDF5 would search it forever."""
    if (offset := data.id.get_offset()) is None:
        return
    with path.open("rb") as file:
        file.seek(offset + 4)
        (address,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        file.seek(min(address, path.stat().st_size))
        signature, n_bytes = struct.unpack("<8sQ", file.read(16).ljust(16, b"\0"))
        is_heap = signature[:4] == b"GCOL" and n_bytes > 16
        heap = file.read(min(n_bytes, LARGEST_HEAP) - 16) if is_heap else b""
    place = 0
    while place + 16 <= len(heap):
        number, size = struct.unpack_from("<H6xQ", heap, place)
        # The size of a free entry includes its header; no entry is shorter than a header.
        length = size if number == 0 else 16 + -(-size // 8) * 8
        if length < 16:
            raise DataError(f"{path} is damaged at {data.name}; copy it again")
        place += length


def check_chunks(data: h5py.Dataset, path: Path) -> None:
    """Raise an error for chunks that unpack to more than their size: HDF5 would allocate it."""
    properties = data.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return
    n_bytes = math.prod(data.chunks) * data.dtype.itemsize
    is_bomb = filters.count(h5py.h5z.FILTER_DEFLATE) > 1
    for number in range(data.id.get_num_chunks()):
        chunk = data.id.get_chunk_info(number)
        # The compression ratio of deflate bounds small chunks.
        if LARGEST_DEFLATION * chunk.size > formats.ALWAYS_UNPACKED:
            _, packed = data.id.read_direct_chunk(chunk.chunk_offset)
            is_bomb |= len(zlib.decompressobj().decompress(packed, n_bytes + 1)) > n_bytes
    if is_bomb:
        raise DataError(f"{path} has chunks that unpack to more than their size; save it again")


def encoding_of(file: h5py.File, path: Path) -> Encoding | None:
    """Return the first encoding of a file's ISMRMRD header; None if there is none.

    The header is not required: one that cannot be read is reported and ignored.
    """
    try:
        if (header := find_dataset(file, path, "ismrmrd_header")) is not None:
            return read_header(header[()]).encodings[0]
    except Exception as error:
        text = printable(f"{path} has an ismrmrd_header that cannot be read ({reason_of(error)})")
        _LOG.warning("%s; spacing and oversampling are unknown", text)
    return None


def _no_target(file: h5py.File, path: Path, key: str | None) -> str:
    wanted, found = key or " or ".join(TARGET_KEYS), datasets(file)
    message = f"{path} has no {wanted} (it has: {listed(found)}); "
    # ISMRMRD stores raw data in the second.
    if key or not {"kspace", "dataset"} & set(file):
        whole = (name for name, data in found.items() if is_complex(data))
        name = next(whole, "REAL,IMAGINARY")
        return message + (
            "name the dataset of images with --key, or that of k-space with its axes, as in "
            f"--key {name} --axes slice,coil,row,col"
        )
    return message + (
        "import the k-space of all files with --raw, or skip fastMRI's public test set, which "
        "has no targets, with --test-from-train"
    )
