"""The acquisition of a batch of slices, step by step: observe, choose, measure."""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import check_chosen, is_any_blocked
from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import Plan
from kscout.acquisition.state import Branches, State
from kscout.core import Observation, Policy

NOT_ACQUIRED = -1
"""Marks steps in which a finished acquisition measures no column."""


@final
class Acquisition:
    """Acquisitions of a batch of slices from the start to the budget; the caller chooses columns.

        acquisition = Acquisition(simulator, Plan(start=16, horizon=16))
        while acquisition.n_next:
            column = best_columns(acquisition.scores(policy), acquisition.blocked)
            acquisition.measure(column[:, None])
        acquisition.finish()

    Images are reconstructed and scored when they are first needed, equal ones of a slice once.
    Nothing synchronizes with the device if each step acquires one column of every slice.

    Args:
        simulator: slices, reconstruction and scores.
        plan: start, number of columns and stopping threshold.
        n_trajectories: acquisitions of each slice, which are adjacent states.
    """

    def __init__(self, simulator: Simulator, plan: Plan, *, n_trajectories: int = 1) -> None:
        self.simulator, self.plan, self.n_trajectories = simulator, plan, n_trajectories
        self.n_acquired = 0
        """Columns acquired by the longest acquisitions."""
        self._distinct = simulator.start(plan.start)
        self._slot = self._distinct.owner.repeat_interleave(n_trajectories)
        self._state = self._distinct.repeated(n_trajectories)
        self._measured: Int[Tensor, "state draw"] | None = None
        """Columns that `state` does not contain yet."""
        self._blocked: tuple[State, Bool[Tensor, "state col"]] | None = None
        self._horizon = plan.each(self._state.owner.device)
        self._is_over = torch.zeros_like(self._state.owner, dtype=torch.bool)
        self._is_any_bad = torch.zeros((), dtype=torch.bool, device=self._is_over.device)

    @property
    def n_next(self) -> int:
        """Columns of the next step; 0 at the end."""
        return min(self.plan.columns_per_step, self.plan.horizon - self.n_acquired)

    @property
    def state(self) -> State:
        """One state for each trajectory of each slice."""
        if self._measured is not None:
            columns, self._measured = self._measured, None
            self._reconstruct(columns)
        return self._state

    @property
    def blocked(self) -> Bool[Tensor, "state col"]:
        """Columns that must not be chosen: measured, or outside the matrix."""
        state = self.state
        if self._blocked is None or self._blocked[0] is not state:
            self._blocked = (state, self.simulator.blocked(state))
        return self._blocked[1]

    def observe(self, policy: Policy) -> Observation:
        """Return the observation of a policy in every state."""
        return self._observe(policy, self.state)

    def scores(self, policy: Policy) -> Float[Tensor, "state col"]:
        """Return the scores of a policy; zeros for finished acquisitions.

        The policy sees equal states of a slice once, and no finished one.
        """
        state = self.state
        if not self.plan.is_plain:
            scores = torch.zeros(state.mask.shape, device=self._is_over.device)
            left = (~self._is_over).nonzero()[:, 0]
            if len(left):
                scores[left] = policy(self._observe(policy, state.rows(left))).to(scores.dtype)
            return scores
        # On CUDA distinct states are padded to the number of states: sharing would save nothing.
        if len(self._distinct) == len(state):
            return policy(self._observe(policy, state))
        return policy(self._observe(policy, self._distinct))[self._slot]

    def _observe(self, policy: Policy, state: State) -> Observation:
        return self.simulator.observe(policy, state, n_left=self._n_left(state.owner))

    def _n_left(self, owner: Int[Tensor, " state"]) -> int | Int[Tensor, " state"]:
        """Return the number of columns left; one number if all slices have the same."""
        if isinstance(self._horizon, int):
            return self._horizon - self.n_acquired
        return (self._horizon[owner] - self.n_acquired).clamp(min=0)

    def limit(
        self, columns: Int[Tensor, "state draw"], policy: Policy, scores: Float[Tensor, "state col"]
    ) -> Int[Tensor, "state draw"]:
        """Replace columns after the end of an acquisition by `NOT_ACQUIRED`.

        It ends with its budget, or when the policy predicts no gain above the threshold.
        """
        if self.plan.is_plain:
            return columns
        state = self.state
        if self.plan.stop_below is not None:
            unit = policy.units_at(state.mask, torch.full_like(state.owner, self.n_acquired))
            best = scores.masked_fill(self.blocked, -torch.inf).amax(dim=-1)
            self._is_over |= best * unit < self.plan.stop_below
        left = torch.as_tensor(self._n_left(state.owner), device=columns.device)
        wanted = left.expand(state.owner.shape).clamp(min=0, max=self.plan.columns_per_step)
        wanted = wanted.masked_fill(self._is_over, 0)
        self._is_over |= wanted < self.plan.columns_per_step
        is_left_out = torch.arange(columns.shape[1], device=columns.device) >= wanted[:, None]
        return columns.masked_fill(is_left_out, NOT_ACQUIRED)

    def measure(self, columns: Int[Tensor, "state draw"]) -> None:
        """Measure columns of every acquisition, except `NOT_ACQUIRED`."""
        self._is_any_bad |= is_any_blocked(columns, self.blocked)
        self._measured = columns
        self.n_acquired += columns.shape[1]

    def _reconstruct(self, columns: Int[Tensor, "state draw"]) -> None:
        state, simulator = self._state, self.simulator
        if not self.plan.is_plain:
            mask = state.mask.new_zeros(len(columns), state.mask.shape[1] + 1)
            # `NOT_ACQUIRED` is written to an extra entry, which is removed.
            mask = mask.scatter(-1, columns % mask.shape[1], True)[:, :-1]
            self._state = self._distinct = simulator.grow(state, state.mask | mask)
        elif self.n_trajectories == 1:
            self._state = self._distinct = simulator.acquire(state, columns[:, 0])
        else:
            branches = simulator.branch(state, columns)
            self._distinct, self._slot = branches.state, branches.slot[:, 0]
            self._state = branches.every()

    def try_columns(self, columns: Int[Tensor, "state candidate"]) -> Branches:
        """Measure candidate columns of every state; `follow` continues with one of them."""
        return self.simulator.branch(self.state, columns)

    def follow(self, candidates: Branches, choice: Int[Tensor, " state"]) -> None:
        """Continue with one of the candidates of every state, which are reconstructed already."""
        self._state = self._distinct = candidates.follow(choice)
        self.n_acquired += 1

    def finish(self, policy: str = "the policy") -> None:
        """Raise an error if a column was measured twice, or lies outside the matrix."""
        check_chosen(self._is_any_bad, policy)
