"""Numbers that were computed on another machine, whose processor adds up in another order."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest


def plain(
    rows: Sequence[Any], *, parse_float: Callable[[str], Any] = float
) -> list[dict[str, Any]]:
    """Return dataclasses as they stand in a file."""
    text = json.dumps([asdict(row) for row in rows])
    found: list[dict[str, Any]] = json.loads(text, parse_float=parse_float)
    return found


def nearly(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the same, with numbers that equal others but for their last digits."""
    return plain(rows, parse_float=lambda text: pytest.approx(float(text), rel=1e-9))
