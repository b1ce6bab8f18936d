"""How options write values that are neither a plain number nor a word."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from kscout.errors import ConfigError


@final
@dataclass(frozen=True)
class Written:
    """Marks a field that an option writes in a form of its own."""

    metavar: str
    """The form, as help shows it."""
    read: Callable[[str, str], Any] = lambda text, _: text
    """Returns the value of a text; its second argument names the option, for messages."""


def parse_size(text: str, option: str) -> int | tuple[int, int]:
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


def parse_matrix(text: str, option: str) -> int | tuple[int, int]:
    """Read what names one of several matrix sizes, as `Store.split` takes it."""
    size = parse_size(text, option)
    # An import takes one number for a square; here it would take any rows.
    return (size, size) if isinstance(size, int) and "x" in text else size


MATRIX = Written("COLS|ROWSxCOLS", parse_matrix)
"""One of several matrix sizes."""
