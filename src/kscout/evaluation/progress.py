"""How callers are told how far an evaluation or an analysis has come."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Step:
    """How far a piece of work has come."""

    what: str
    """The work in words: `greedy, seed 0`."""
    done: int
    total: int


OnStep = Callable[[Step], None]
