"""The settings of a session, its advice, and its file.

A file consists of plain arrays and JSON, is written atomically and validated when it is read.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.plan import Plan
from kscout.columns import center_columns, whole_order
from kscout.config.bounds import Above, AtLeast, Between
from kscout.config.records import check
from kscout.errors import ConfigError, DataError, RunError
from kscout.files import parse_json, read_arrays, written_whole
from kscout.json_types import JsonObject

FORMAT = 1
_FACTS = "session"

MOST = 4096
"""Largest number of rows, columns and coils of a session."""
Source = Literal["start", "policy", "fallback", "end"]
"""Source of advice."""


@final
@dataclass(frozen=True, kw_only=True)
class Scan:
    """Matrix, start and budget of a session, and how columns are requested."""

    n_rows: Annotated[int, Between(1, MOST)]
    n_cols: Annotated[int, Between(1, MOST)]
    n_coils: Annotated[int, Between(1, MOST)] = 1
    budget: Annotated[int, AtLeast(1)]
    """Columns measured in total, the start included."""
    initial: int | tuple[int, ...]
    """Columns measured before the first advice: a number of central ones, or a list."""
    selectable: tuple[int, ...] | None = None
    """Columns inside the measured matrix, if not all are; others are never requested."""
    columns_per_step: Annotated[int, AtLeast(1)] = 1
    """Columns requested at once, as for an echo train: the best, or sampled without replacement."""
    seed: int | None = None
    """Random seed of a policy that samples columns, as in training; 0 by default."""
    argmax: bool = False
    """Take the columns with the highest score of every policy that was trained."""
    deadline_s: Annotated[float, Above(0)] | None = None
    """Seconds after which the fallback answers instead of the policy."""
    fallback: tuple[int, ...] = ()
    """Order of columns if the policy is late or fails; missing columns follow from the center
    outwards."""

    def __post_init__(self) -> None:
        check(self)
        whole_order(self.n_cols, self.fallback)
        whole_order(self.n_cols, self.selectable or ())
        n_initial = self.initial if isinstance(self.initial, int) else len(self.initial)
        if not 0 < n_initial <= self.budget:
            raise ConfigError(
                f"a budget of {self.budget} columns cannot hold a start of {n_initial}; start from "
                f"1..{self.budget} columns, or raise the budget"
            )
        allowed = self.allowed()
        if self.budget > (n_allowed := int(allowed.sum())):
            raise ConfigError(
                f"a budget of {self.budget} columns is more than the {n_allowed} that can be "
                f"measured; lower the budget to {n_allowed} or less"
            )
        self.plan.check(allowed[None])

    @property
    def plan(self) -> Plan:
        """Start, number of columns and sampling."""
        n_initial = self.initial if isinstance(self.initial, int) else len(self.initial)
        return Plan(
            self.initial,
            self.budget - n_initial,
            columns_per_step=self.columns_per_step,
            seed=self.seed or 0,
            is_argmax=self.argmax,
        )

    @property
    def start(self) -> tuple[int, ...]:
        """The columns measured before the first advice."""
        if isinstance(self.initial, int):
            return tuple(center_columns(self.n_cols, self.initial))
        return self.initial

    @property
    def has_fallback(self) -> bool:
        """Whether a failure of the policy leads to the fallback: it is given, or a deadline is."""
        return bool(self.fallback) or self.deadline_s is not None

    def allowed(self) -> Bool[Tensor, " col"]:
        """Return the columns that may be measured."""
        allowed = torch.full((self.n_cols,), self.selectable is None)
        allowed[list(self.selectable or ())] = True
        return allowed


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """The columns to measure next, and their source."""

    columns: tuple[int, ...]
    """In order of preference; empty at the end."""
    source: Source
    """`start` until all of it is measured; `fallback` if the policy was late or failed."""
    scores: Float[Tensor, " col"] | None = None
    """Scores of all columns, measured ones included; None for other sources."""
    duration_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the policy was late or failed."""
        return self.source == "fallback"


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
