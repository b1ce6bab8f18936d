"""Columns per step, budget and stopping criterion of acquisitions."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.state import State
from kscout.core import Policy
from kscout.errors import ConfigError


@final
@dataclass(frozen=True)
class Pace:
    """Number of columns, columns per reconstruction, and stopping criterion."""

    horizon: int | Int[Tensor, " batch"]
    """Columns to acquire, one number or one per slice."""
    columns_per_step: int = 1
    """Columns chosen per reconstruction; the last step may acquire fewer."""
    stop_below: float | None = None
    """A slice ends before a step in which no column has this predicted gain in SSIM."""
    most: int | None = None
    """Count steps up to this number of columns, even if no slice of the batch acquires it."""

    def __post_init__(self) -> None:
        check_pace(self.columns_per_step, self.stop_below)

    @property
    def longest(self) -> int:
        """Largest number of columns to acquire in a slice."""
        if self.most is not None:
            return self.most
        return self.horizon if isinstance(self.horizon, int) else int(self.horizon.max())

    @property
    def n_steps(self) -> int:
        """Steps of the longest acquisition."""
        return -(-self.longest // self.columns_per_step)

    @property
    def is_plain(self) -> bool:
        """Whether every step acquires one column of every slice."""
        is_even = isinstance(self.horizon, int)
        return is_even and self.columns_per_step == 1 and self.stop_below is None

    def n_at(self, step: int) -> int:
        """Return the largest number of columns that a slice acquires at a step."""
        return min(self.columns_per_step, self.longest - step * self.columns_per_step)

    def left(self, n_acquired: int, owner: Int[Tensor, " state"]) -> int | Int[Tensor, " state"]:
        """Return the number of columns left per state; one number if all states have the same."""
        if isinstance(self.horizon, int):
            return self.horizon - n_acquired
        return (self.horizon[owner] - n_acquired).clamp(min=0)

    def n_wanted(
        self, step: int, owner: Int[Tensor, " state"], is_over: Bool[Tensor, " state"]
    ) -> Int[Tensor, " state"]:
        """Return the number of columns that each state acquires at a step."""
        left = torch.as_tensor(self.left(step * self.columns_per_step, owner), device=owner.device)
        wanted = left.expand(owner.shape).clamp(min=0, max=self.columns_per_step)
        return wanted.masked_fill(is_over, 0)

    def stops(
        self,
        policy: Policy,
        scores: Float[Tensor, "state col"],
        state: State,
        blocked: Bool[Tensor, "state col"],
        n_acquired: int,
    ) -> Bool[Tensor, " state"]:
        """Return whether the predicted gains of all remaining columns are below the threshold."""
        if self.stop_below is None:
            return torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        unit = policy.units_at(state.mask, torch.full_like(state.owner, n_acquired))
        best = scores.masked_fill(blocked, -torch.inf).amax(dim=-1)
        return best * unit < self.stop_below


def check_pace(columns_per_step: int, stop_below: float | None) -> None:
    """Raise an error for an invalid number of columns per step or an invalid threshold."""
    if columns_per_step < 1:
        raise ConfigError(
            f"cannot acquire {columns_per_step} columns per step; give 1 or more, e.g. 2"
        )
    if stop_below is not None and not -1 <= stop_below <= 1:
        raise ConfigError(
            f"a gain in SSIM of {stop_below} cannot be a threshold; give a number like .001"
        )


def check_promises(policy: Policy, stop_below: float | None) -> None:
    """Raise an error for a threshold with a policy that does not predict gains."""
    if stop_below is not None and not policy.gain_units:
        raise ConfigError(
            f"{type(policy).__name__} predicts no gain in SSIM to stop below {stop_below:g}; leave "
            "out the threshold, or use the oracle or a policy trained with --method dense, "
            "posterior or ensemble"
        )
