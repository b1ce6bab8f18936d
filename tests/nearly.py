"""Numbers that were computed on another machine, whose processor adds up in another order."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest


def plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return dataclasses as they stand in a file."""
    found: list[dict[str, Any]] = json.loads(json.dumps([asdict(row) for row in rows]))
    return found


def nearly(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the same, with numbers that equal others but for their last digits."""
    text = json.dumps([asdict(row) for row in rows])
    found: list[dict[str, Any]] = json.loads(
        text, parse_float=lambda number: pytest.approx(float(number), rel=1e-9)
    )
    return found
