"""Sessions as files: plain arrays and JSON, written whole, read without trust."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from kscout.errors import DataError, RunError
from kscout.files import parse_json, read_arrays, written_whole

FORMAT = 1
_FACTS = "session"


class NotKeptError(RunError):
    """A session could not be written, as when a disk is full."""


class Kept(NamedTuple):
    """What a file holds of a session."""

    facts: dict[str, Any]
    arrays: dict[str, Any]


def write_kept(path: Path, kept: Kept) -> None:
    """Write a session's facts, as JSON, and arrays into one file that appears whole."""
    text = json.dumps({"format": FORMAT, **kept.facts})
    facts = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    try:
        with written_whole(path) as aside, aside.open("wb") as file:
            np.savez(file, allow_pickle=False, **{_FACTS: facts, **kept.arrays})
    except OSError as error:
        raise NotKeptError(
            f"the session cannot be kept in its file ({error.strerror}); make room there, and "
            "try again"
        ) from error


def read_kept(path: Path) -> Kept:
    """Read what `write_kept` wrote; whatever is wrong with it is a DataError."""
    try:
        arrays = read_arrays(path)
        facts = parse_json(arrays.pop(_FACTS).tobytes().decode("utf-8"))
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']!r}, and {FORMAT} is known")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, error) from error
    return Kept(facts, arrays)


def damaged(path: Path, reason: object) -> DataError:
    """Return the error for a file that cannot be a session's."""
    return DataError(f"{path} holds no session that can be continued ({reason}); start a new one")


def matching(expected: Tensor, found: Tensor) -> Tensor:
    """Return an array of a file; one of another shape or dtype than expected is a ValueError."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise ValueError(f"an array of {found.dtype}, shape {tuple(found.shape)}")
    return found


def unit_of(kept: Kept) -> complex:
    """Return the unit of a session's k-space; 1 for files of version 0.2, which record none."""
    unit = complex(*kept.facts.get("unit", (1.0, 0.0)))
    if not 0 < abs(unit) < math.inf:
        raise ValueError(f"k-space in units of {unit}")
    return unit
