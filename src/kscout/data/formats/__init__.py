"""Readers of file formats, one file each; `kscout.names.FORMATS` is their table.

A reader takes a path, and the options that its entry names, and returns an `ImageScan`. It checks
the declared shape first (`check_size`); `reading` converts exceptions of its library to
`DataError`.
"""

import importlib
import logging
import math
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from kscout.errors import DataError, KScoutError
from kscout.files import reason_of
from kscout.names import FORMATS, RAW_FORMATS

Stack = Float32[np.ndarray, "slice row col"]
"""Images of one volume."""

LARGEST_EXPANSION = 100
"""Largest ratio of an array to its file; images compress by far less, zeros by far more."""
ALWAYS_UNPACKED = 64 * 2**20
"""Size in bytes that an array may always have."""
BYTES_PER_PIXEL = 16
"""Memory for reading: a pixel as its library stores it, in 32 bit, and once more after cropping."""
_NEGLIGIBLE = 2**20
"""Arrays of this many bytes skip the query of free memory, which is as slow as reading a line."""
LARGEST_DEFLATION = 1032
"""Largest compression ratio of a deflated file."""
_LOGGERS = [logging.getLogger(name) for name in ("pydicom", "nibabel")]
"""Loggers of libraries, with those below them, that report irrelevant details of files."""
_PIECE, _LISTED = 2**20, 10


class ImageScan(NamedTuple):
    """Content of a file: the images of one volume."""

    images: Stack
    acquisition: str = ""
    """Contrast as named in the file."""
    spacing_mm: tuple[float, float] | None = None
    """Distance of neighboring rows, and of neighboring columns; None if unspecified."""
    slice_mm: float | None = None
    """Distance of neighboring slices; None if unspecified or not constant."""


def ordered(images: np.ndarray, axes: tuple[str, ...], path: Path) -> np.ndarray:
    """Return slice x row x col of an array with named axes; several slice axes count together."""
    if any(length > 1 for axis, length in zip(axes, images.shape, strict=True) if axis == "-"):
        raise DataError(
            f"{path} has shape {images.shape}, and --axes {','.join(axes)} marks an axis that is "
            "longer than 1 as -; name it slice"
        )
    images = np.moveaxis(images, [axes.index("row"), axes.index("col")], [-2, -1])
    return np.ascontiguousarray(images.reshape(-1, *images.shape[-2:]))


def complex_advice(n_axes: int) -> str:
    """Return the advice for a complex array that is imported as images."""
    axes = {2: "row,col", 3: "slice,row,col"}.get(n_axes, "slice,coil,row,col")
    return (
        "if these are images, save their absolute values; if they are k-space, name its axes, as "
        f"in --axes {axes} (complex images of coils: also --origin image)"
    )


def require(name: str, path: Path) -> ModuleType:
    """Import the package that reads a format; the error has installation advice."""
    entry = FORMATS.get(name) or RAW_FORMATS[name]
    try:
        return importlib.import_module(entry.needs)
    except ImportError as error:
        raise DataError(
            f"{path} is {entry.summary}, which needs {entry.needs}; pip install 'kscout[formats]'"
        ) from error


@contextmanager
def reading(path: Path, what: str, advice: str = "copy or save it again") -> Iterator[None]:
    """Convert any exception while reading one file to one sentence that names the file."""
    try:
        with _quieted(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except KScoutError as error:
        if printable(str(error)) == str(error):
            raise
        raise DataError(printable(str(error))) from error
    except MemoryError as error:
        raise DataError(
            printable(f"{path} does not fit into the memory that is free; split it up")
        ) from error
    # Libraries raise arbitrary types on damaged files, so no list of types would be complete.
    except Exception as error:
        if not path.exists():
            raise DataError(printable(f"{path} does not exist; name a file that does")) from error
        reason = reason_of(error)
        raise DataError(
            printable(f"{path} cannot be read as {what} ({reason}); {advice}")
        ) from error


@contextmanager
def _quieted() -> Iterator[None]:
    """Stop the messages of libraries inside the block: of their modules, on the way up."""
    states = [(logger, logger.handlers, logger.propagate) for logger in _LOGGERS]
    for logger, *_ in states:
        logger.handlers, logger.propagate = [logging.NullHandler()], False
    try:
        yield
    finally:
        for logger, handlers, propagates in states:
            logger.handlers, logger.propagate = handlers, propagates


def check_deflated(path: Path, start: int, wbits: int) -> None:
    """Unpack a deflated file to its end, where its checksum is, up to a limit.

    `wbits` is the format of the stream, as in `zlib`; a gzip file may contain several streams.
    """
    most, n_bytes = max(ALWAYS_UNPACKED, LARGEST_EXPANSION * path.stat().st_size), 0
    with path.open("rb") as file:
        file.seek(start)
        decoder, packed = zlib.decompressobj(wbits), file.read(_PIECE)
        while packed and n_bytes <= most:
            n_bytes += len(decoder.decompress(packed, _PIECE))
            packed = decoder.unconsumed_tail or decoder.unused_data or file.read(_PIECE)
            if decoder.eof and wbits > zlib.MAX_WBITS and packed.strip(b"\0"):
                decoder = zlib.decompressobj(wbits)
            elif decoder.eof:
                return
    if n_bytes > most:
        raise DataError(
            f"{path} unpacks to more than {amount(most)}, and has {amount(path.stat().st_size)}; "
            "images do not compress that much: copy or save it again"
        )
    raise EOFError("it ends within its compressed data")


def check_size(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise an error, before reading, for an array that its file or the free memory cannot hold."""
    n_pixels = math.prod(int(length) for length in shape)
    check_expansion(path, n_pixels * dtype.itemsize, f"{dtype} of shape {tuple(shape)}")
    check_memory(path, n_pixels)


def check_expansion(path: Path, n_bytes: int, what: str) -> None:
    """Raise an error for a file that declares an implausible amount of data for its size."""
    n_in_file = path.stat().st_size
    if n_bytes > max(ALWAYS_UNPACKED, LARGEST_EXPANSION * n_in_file):
        raise DataError(
            f"{path} declares {what}, which are {amount(n_bytes)}, and has {amount(n_in_file)}; "
            "images do not compress that much: copy or save it again"
        )


def check_memory(path: Path, n_pixels: int) -> None:
    """Raise an error for a volume with more pixels than the free memory can hold."""
    if n_pixels * BYTES_PER_PIXEL <= _NEGLIGIBLE:
        return
    # A local import, because processes that generate volumes do not load torch.
    import torch

    from kscout.device import free_memory

    needed, free = n_pixels * BYTES_PER_PIXEL, free_memory(torch.device("cpu"))
    if needed > free:
        raise DataError(
            f"{path} has {n_pixels} pixels, which take {amount(needed)} of memory to import, and "
            f"{amount(free)} are free; split it up"
        )


def amount(n_bytes: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"


def listed(names: Iterable[str]) -> str:
    """Return the first names of a file's content, for messages."""
    found = sorted(names)
    more = f", ... ({len(found)} in all)" if len(found) > _LISTED else ""
    return ", ".join(f"{name:.60}" for name in found[:_LISTED]) + more or "nothing"


def printable(text: str) -> str:
    """Return a text with escapes for characters that terminals or UTF-8 cannot show."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(shown)
