"""Readers of file formats, one file each; `kscout.names.FORMATS` is their table.

A reader takes a path, and the options that its entry names, and returns a `Scan`. It looks at the
declared shape first (`check_size`), and lets pass what its library raises: `reading` tells it.
"""

import importlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from kscout.errors import DataError, KScoutError
from kscout.names import FORMATS, RAW_FORMATS

Stack = Float32[np.ndarray, "slice row col"]
"""Images of one volume."""

LARGEST_EXPANSION = 100
"""How many times its file an array may be; images compress by far less, zeros by far more."""
ALWAYS_UNPACKED = 64 * 2**20
"""Bytes that an array may have whatever its file."""
LARGEST_SIDE = 4096
"""Pixels that images may have on a side."""
BYTES_PER_PIXEL = 16
"""What reading takes: a pixel as its library holds it, in 32 bit, and once more when it is cut."""
_NEGLIGIBLE = 2**20
"""Bytes that are there: asking the system takes as long as reading a line of a stream."""
LARGEST_DEFLATION = 1032
"""How many times its size a deflated file may become."""
_LOGGERS = [logging.getLogger(name) for name in ("pydicom", "nibabel.global")]
"""What remarks on every oddity of a file, useful or not."""


class Scan(NamedTuple):
    """What a file holds: the images of one volume."""

    images: Stack
    acquisition: str = ""
    """What the file calls its contrast."""
    spacing_mm: tuple[float, float] | None = None
    """Distance of neighboring rows, and of neighboring columns, where the file tells it."""


def require(name: str, path: Path) -> Any:  # noqa: ANN401 - a module
    """Import the package that reads a format, or say how to install it."""
    entry = FORMATS.get(name) or RAW_FORMATS[name]
    try:
        return importlib.import_module(entry.needs)
    except ImportError as error:
        raise DataError(
            f"{path} is {entry.summary}, which needs {entry.needs}; pip install "
            f"'kscout[{entry.extra}]'"
        ) from error


@contextmanager
def reading(path: Path, what: str, advice: str = "copy or save it again") -> Iterator[None]:
    """Tell whatever goes wrong with one file in one sentence that names it."""
    quieted = [logger for logger in _LOGGERS if not logger.disabled]
    for logger in quieted:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
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
    # Libraries raise what they like on damaged files, so no list of types would be complete.
    except Exception as error:
        if not path.exists():
            raise DataError(printable(f"{path} does not exist; name a file that does")) from error
        told = error.strerror if isinstance(error, OSError) else None
        reason = (told or str(error) or type(error).__name__).strip().splitlines()[0]
        raise DataError(
            printable(f"{path} cannot be read as {what} ({reason}); {advice}")
        ) from error
    finally:
        for logger in quieted:
            logger.disabled = False


def check_size(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuse an array, before it is read, that its file or the free memory cannot hold."""
    n_pixels = math.prod(int(length) for length in shape)
    check_expansion(path, n_pixels * dtype.itemsize, f"{dtype} of shape {tuple(shape)}")
    check_memory(path, n_pixels)


def check_expansion(path: Path, n_bytes: int, what: str) -> None:
    """Refuse a file that says it holds so much that it cannot be images."""
    n_in_file = path.stat().st_size
    if n_bytes > max(ALWAYS_UNPACKED, LARGEST_EXPANSION * n_in_file):
        raise DataError(
            f"{path} declares {what}, which are {amount(n_bytes)}, and has {amount(n_in_file)}; "
            "images do not compress so far: copy or save it again"
        )


def check_memory(path: Path, n_pixels: int) -> None:
    """Refuse a volume of so many pixels that the free memory cannot hold."""
    if n_pixels * BYTES_PER_PIXEL <= _NEGLIGIBLE:
        return
    # Here, because processes that draw volumes do without torch.
    import torch

    from kscout.device import free_memory

    needed, free = n_pixels * BYTES_PER_PIXEL, free_memory(torch.device("cpu"))
    if needed > free:
        raise DataError(
            f"{path} has {n_pixels} pixels, which take {amount(needed)} of memory to import, and "
            f"{amount(free)} are free; split it up"
        )


def amount(n_bytes: int) -> str:
    """Return a number of bytes as people read it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"


def printable(text: str) -> str:
    """Return a text with escapes for what no terminal or UTF-8 file shows, e.g. of file names."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(shown)
