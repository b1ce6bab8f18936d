"""fastMRI's HDF5 volumes (arXiv:1811.08839)."""

import math
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from kscout.data import formats
from kscout.data.formats import LARGEST_DEFLATION, Scan, check_size
from kscout.data.formats.ismrmrd_header import read_header
from kscout.errors import DataError

LARGEST_HEAP = 2**26
"""Bytes of a heap of texts that are looked through."""
TARGET_KEYS = ("reconstruction_esc", "reconstruction_rss")
"""Where single-coil (knee) and multi-coil (brain) targets lie."""


def read_hdf5(path: Path, key: str | None = None) -> Scan:
    """Return the target images and the acquisition of a volume; nothing else is needed in it.

    Args:
        path: the HDF5 file.
        key: the data set that holds the images; by default whichever of `TARGET_KEYS` is there.
    """
    with h5py.File(path, "r") as file:
        data, name = None, key or ""
        for name in (key,) if key else TARGET_KEYS:
            if (data := find_dataset(file, path, name)) is not None:
                break
        if data is None:
            raise DataError(_no_target(file, path, key))
        if data.shape is None or len(data.shape) != 3 or data.dtype.kind not in "fiu":
            raise DataError(
                f"{path} holds {name} as {data.dtype} of shape {data.shape} instead of real "
                "images slice x row x column; name another data set with --key"
            )
        check_size(path, data.shape, data.dtype)
        check_chunks(data, path)
        images = data[()].astype(np.float32, copy=False)
        acquisition = text_attribute(file, "acquisition")
        spacing_mm = _spacing(file, path) if name in TARGET_KEYS else None
    return Scan(images, acquisition, spacing_mm)


def text_attribute(file: h5py.File, name: str) -> str:
    """Return an attribute of a file as text, whatever it is; empty where there is none."""
    value = file.attrs.get(name, "")
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def find_dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset | None:
    """Return a data set whose values lie in this very file; None where there is none."""
    place = file
    for part in name.strip("/").split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) else None
        if link is None:
            return None
        # Not followed: it may lead to any file of this machine.
        if not isinstance(link, h5py.HardLink):
            raise DataError(
                f"{path} holds {name} as a link to {getattr(link, 'path', 'elsewhere')}; copy the "
                "images themselves into the file"
            )
        place = place[part]
    if not isinstance(place, h5py.Dataset):
        raise DataError(f"{path} holds {name} as a group; name a data set in it with --key")
    if place.external or place.is_virtual:
        raise DataError(
            f"{path} holds {name} without its values, which lie in other files; copy the images "
            "themselves into the file"
        )
    return place


def check_heap(data: h5py.Dataset, path: Path) -> None:
    """Refuse text whose place in the file is damaged: HDF5 would look through it forever."""
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
        # What is free counts its own head; nothing is shorter than a head.
        length = size if number == 0 else 16 + -(-size // 8) * 8
        if length < 16:
            raise DataError(f"{path} is damaged where {data.name} lies; copy it again")
        place += length


def check_chunks(data: h5py.Dataset, path: Path) -> None:
    """Refuse chunks that unpack to more than a chunk holds: HDF5 would take the memory for it."""
    properties = data.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return
    n_bytes = math.prod(data.chunks) * data.dtype.itemsize
    is_bomb = filters.count(h5py.h5z.FILTER_DEFLATE) > 1
    for number in range(data.id.get_num_chunks()):
        chunk = data.id.get_chunk_info(number)
        # A small one is bounded by how far anything can be deflated.
        if LARGEST_DEFLATION * chunk.size > formats.ALWAYS_UNPACKED:
            _, packed = data.id.read_direct_chunk(chunk.chunk_offset)
            is_bomb |= len(zlib.decompressobj().decompress(packed, n_bytes + 1)) > n_bytes
    if is_bomb:
        raise DataError(f"{path} has chunks that unpack to more than they hold; save it again")


def _spacing(file: h5py.File, path: Path) -> tuple[float, float] | None:
    """Return the spacing of rows and columns by the file's ISMRMRD header."""
    # Nothing but the target is required: where the header cannot be read, there is none.
    with suppress(Exception):
        if header := find_dataset(file, path, "ismrmrd_header"):
            space = read_header(header[()]).encodings[0].reconstructed
            return space and space.spacing_mm
    return None


def _no_target(file: h5py.File, path: Path, key: str | None) -> str:
    wanted, keys = key or " or ".join(TARGET_KEYS), sorted(file)
    message = f"{path} has no {wanted} (it has: {', '.join(keys) or 'nothing'}); "
    # The second is where ISMRMRD keeps raw data.
    if key or not {"kspace", "dataset"} & set(keys):
        return message + "name the data set of images with --key"
    return message + (
        "import the k-space of all files with --raw, or pass over fastMRI's public test set, which "
        "has none, with --test-from-train"
    )
