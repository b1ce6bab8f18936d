"""States as rows of tensors by name, joined over steps, and a replay buffer of them."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.core import Observation
from kscout.kernels.cuda import count_on
from kscout.policies.views import View

Rows = dict[str, Tensor]
"""Tensors by name, with one row per state, decision or acquisition."""
_OBSERVED = tuple(field.name for field in fields(Observation))


def observe(
    view: View, simulator: Simulator, state: State, n_left: Int[Tensor, " state"] | None = None
) -> Observation:
    """Return the observation of states, with a step for each, as several steps will be joined."""
    seen = simulator.observe(view.chooser, state, n_left=n_left)
    return replace(seen, step=count_on(state.mask.device, state.step).expand(len(state)))


def rows_of(seen: Observation, **more: Tensor) -> Rows:
    """Return the tensors of an observation, which has a step for each state, and further ones."""
    own = {name: getattr(seen, name) for name in _OBSERVED}
    return {**{name: value for name, value in own.items() if value is not None}, **more}


def observation_of(rows: Rows) -> Observation:
    """Return the observation among tensors."""
    return Observation(**{name: rows[name] for name in _OBSERVED if name in rows})  # type: ignore[arg-type]


def joined(steps: Sequence[Rows], n_at_once: int) -> Iterator[Rows]:
    """Yield at most `n_at_once` consecutive rows at a time, from one step or several."""
    n_rows = [len(rows["mask"]) for rows in steps]
    for begin in range(0, sum(n_rows), n_at_once):
        pieces, at = [], 0
        for rows, n in zip(steps, n_rows, strict=True):
            first, last = max(begin - at, 0), min(begin + n_at_once - at, n)
            if first < last:
                pieces.append({name: value[first:last] for name, value in rows.items()})
            at += n
        yield {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


@final
class Memory:
    """The newest rows, oldest first, on the device of the added ones."""

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.rows: Rows = {}

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def add(self, *new: Rows) -> None:
        """Add rows with equal names; the oldest surplus rows are removed."""
        parts = [self.rows, *new] if self.rows else new
        names = [*new[0]]
        self.rows = {x: torch.cat([part[x] for part in parts])[-self.n_most :] for x in names}

    def draw(self, uniforms: Float[Tensor, " n"]) -> Rows:
        """Return rows sampled with replacement by numbers in [0, 1)."""
        which = (uniforms * len(self)).long().clamp(max=len(self) - 1)
        return {name: value[which] for name, value in self.rows.items()}
