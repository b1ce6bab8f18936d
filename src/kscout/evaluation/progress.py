"""Progress of an evaluation or an analysis, for callbacks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Step:
    """Progress of a part of the work."""

    what: str
    """The part in words: `greedy, seed 0`."""
    done: int
    total: int


OnStep = Callable[[Step], None]
