"""How options write values that are neither a plain number nor a word."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from kscout.errors import ConfigError


@final
@dataclass(frozen=True)
class Form:
    """What a command says of a field beyond its name, type, bounds and docstring."""

    metavar: str | None = None
    """Form of the value, as help shows it."""
    read: Callable[[str, str], Any] | None = None
    """Returns the value of a text; its second argument names the option, for messages."""
    flags: str = ""
    """Flags that differ from the name, separated by spaces."""
    help: str = ""
    """Text for a help that several commands share or that lists names, instead of a docstring."""
    envvar: str | None = None
    """Environment variable that replaces the option."""
    is_argument: bool = False
    """Whether the value has no flag."""
    is_hidden: bool = False


LARGEST_SIDE = 4096
"""Largest number of pixels on one side of an image."""
Size = tuple[int, int]
"""Rows and columns."""


def sides(size: int | Size) -> Size:
    """Return rows and columns of a size, which may be one number for a square."""
    return (size, size) if isinstance(size, int) else size


def parse_size(text: str, option: str) -> int | Size:
    """Read a size in pixels from one number, the side of a square, or from `ROWSxCOLS`."""
    try:
        rows, *cols = (int(part) for part in text.split("x"))
    except ValueError:
        rows, cols = 0, [0, 0]
    if len(cols) > 1:
        raise ConfigError(
            f"{option} {text!r} is no image size; write pixels as in 128, or rows x columns "
            "as in 640x368"
        )
    return rows if cols in ([], [rows]) else (rows, cols[0])


def parse_matrix(text: str, option: str) -> int | Size:
    """Read what names one of several matrix sizes, as `Store.split` takes it."""
    size = parse_size(text, option)
    # An import takes one number for a square; here it would take any rows.
    return (size, size) if isinstance(size, int) and "x" in text else size


MATRIX = Form("COLS|ROWSxCOLS", parse_matrix)
"""One of several matrix sizes."""
