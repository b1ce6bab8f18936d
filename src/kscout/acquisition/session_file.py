"""Sessions as files: plain arrays and JSON, written atomically and validated when read."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from kscout.errors import DataError, RunError
from kscout.files import parse_json, read_arrays, written_whole
from kscout.json_types import JsonObject

FORMAT = 1
_FACTS = "session"


class NotSavedError(RunError):
    """A session could not be written, as when a disk is full."""


class SavedSession(NamedTuple):
    """The content of a session's file."""

    facts: JsonObject
    arrays: JsonObject


def write_session(path: Path, saved: SavedSession) -> None:
    """Write metadata, as JSON, and arrays to one file, atomically."""
    text = json.dumps({"format": FORMAT, **saved.facts})
    facts = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    try:
        with written_whole(path) as aside, aside.open("wb") as file:
            np.savez(file, allow_pickle=False, **{_FACTS: facts, **saved.arrays})
    except OSError as error:
        raise NotSavedError(
            f"the session cannot be kept in its file ({error.strerror}); make room there, and "
            "try again"
        ) from error


def read_session(path: Path) -> SavedSession:
    """Read the file of a session; any damage is a DataError."""
    try:
        arrays = read_arrays(path)
        facts = parse_json(arrays.pop(_FACTS).tobytes().decode("utf-8"))
        if facts["format"] != FORMAT:
            raise ValueError(f"its format is {facts['format']!r}, and {FORMAT} is known")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, error) from error
    return SavedSession(facts, arrays)


def damaged(path: Path, reason: object) -> DataError:
    """Return the error for a file that is no session."""
    return DataError(f"{path} holds no session that can be continued ({reason}); start a new one")


def matching(expected: Tensor, found: Tensor) -> Tensor:
    """Return an array of a file; another shape or dtype is a ValueError."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise ValueError(f"an array of {found.dtype}, shape {tuple(found.shape)}")
    return found


def unit_of(saved: SavedSession) -> complex:
    """Return the unit of a session's k-space; 1 for files of version 0.2, which record none."""
    unit = complex(*saved.facts.get("unit", (1.0, 0.0)))
    if not 0 < abs(unit) < math.inf:
        raise ValueError(f"k-space in units of {unit}")
    return unit
