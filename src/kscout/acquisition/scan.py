"""What a session acquires (sizes, budget, start, how advice is asked for), and what it advises."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.budget import check_budget
from kscout.columns import center_columns, whole_order
from kscout.config.bounds import Above, AtLeast, Between
from kscout.config.records import check
from kscout.errors import ConfigError

MOST = 4096
"""Rows, columns and coils that a session takes: more is a mistake in typing."""
Source = Literal["start", "policy", "fallback", "end"]
"""Of advice."""


@final
@dataclass(frozen=True, kw_only=True)
class Scan:
    """What is to be acquired of one slice, and how it is asked for."""

    n_rows: Annotated[int, Between(1, MOST)]
    n_cols: Annotated[int, Between(1, MOST)]
    n_coils: Annotated[int, Between(1, MOST)] = 1
    budget: Annotated[int, AtLeast(1)]
    """Columns measured in the end, the start included."""
    initial: int | tuple[int, ...]
    """Columns measured before the first advice: so many around the center, or these."""
    selectable: tuple[int, ...] | None = None
    """Columns inside the measured matrix, where not all are; no others are asked for."""
    columns_per_step: Annotated[int, AtLeast(1)] = 1
    """Columns asked for at once, as for an echo train: the best, or draws without replacement."""
    seed: int | None = None
    """Random seed of a policy that samples columns, as in training; 0 by default."""
    argmax: bool = False
    """Take the columns with the highest score of every policy that was trained."""
    deadline_s: Annotated[float, Above(0)] | None = None
    """Seconds after which the fallback answers in the policy's place."""
    fallback: tuple[int, ...] = ()
    """The order that answers when the policy is late or fails; what it leaves out follows from the
    center outwards."""

    def __post_init__(self) -> None:
        check(self)
        whole_order(self.n_cols, self.fallback)
        whole_order(self.n_cols, self.selectable or ())
        initial = self.initial if isinstance(self.initial, int) else list(self.initial)
        n_initial = initial if isinstance(initial, int) else len(initial)
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
        check_budget(allowed[None], n_initial=initial, horizon=self.budget - n_initial)

    @property
    def start(self) -> tuple[int, ...]:
        """The columns measured before the first advice."""
        if isinstance(self.initial, int):
            return tuple(center_columns(self.n_cols, self.initial))
        return self.initial

    @property
    def has_fallback(self) -> bool:
        """Whether an order answers for a policy that fails: one is named, or a deadline is set."""
        return bool(self.fallback) or self.deadline_s is not None

    def allowed(self) -> Bool[Tensor, " col"]:
        """Return the columns that may be measured."""
        allowed = torch.full((self.n_cols,), self.selectable is None)
        allowed[list(self.selectable or ())] = True
        return allowed


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """Which columns to measure next, and why."""

    columns: tuple[int, ...]
    """In the order of preference; none at the end."""
    source: Source
    """`start` until all of it is measured; `fallback` where the policy was late or failed."""
    scores: Float[Tensor, " col"] | None = None
    """The policy's, of every column, measured ones included; None where another source answers."""
    duration_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the fallback answers, for a policy that was late or failed."""
        return self.source == "fallback"
