"""The acquisition of a batch of slices: step by step, or by a policy up to the budget."""

from dataclasses import dataclass
from typing import SupportsIndex, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import (
    check_chosen,
    choose_several,
    column_log_probabilities,
    is_any_blocked,
)
from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import Plan
from kscout.acquisition.state import Branches, State
from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.metrics import nmse, psnr
from kscout.physics.sampling import Initial, start_mask
from kscout.randomness import keyed_generator
from kscout.shapes import one_line

NOT_ACQUIRED = -1
"""Fills the columns of a last step that acquires fewer."""


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
        plan: start and number of columns.
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
        self._is_any_bad = torch.zeros((), dtype=torch.bool, device=self._state.owner.device)

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
        """Return the scores of a policy, which sees equal states of a slice once."""
        state = self.state
        # On CUDA distinct states are padded to the number of states: sharing would save nothing.
        if len(self._distinct) == len(state):
            return policy(self._observe(policy, state))
        return policy(self._observe(policy, self._distinct))[self._slot]

    def _observe(self, policy: Policy, state: State) -> Observation:
        return self.simulator.observe(policy, state, n_left=self.plan.horizon - self.n_acquired)

    def measure(self, columns: Int[Tensor, "state draw"]) -> None:
        """Measure columns of every acquisition."""
        self._is_any_bad |= is_any_blocked(columns, self.blocked)
        self._measured = columns
        self.n_acquired += columns.shape[1]

    def _reconstruct(self, columns: Int[Tensor, "state draw"]) -> None:
        state, simulator = self._state, self.simulator
        if self.plan.columns_per_step > 1:
            self._state = self._distinct = simulator.branch(state, columns[:, None]).state
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


@final
@dataclass(frozen=True, repr=False)
class Trajectory:
    """Acquired columns, and metrics of the images; `moment` 0 is the start.

    Axis `trajectory` runs over repeated acquisitions of one slice, `moment` over the start and the
    image after each step.
    """

    columns: Int[Tensor, "batch trajectory column"]
    """Columns in the order of acquisition; `NOT_ACQUIRED` if the last step acquired fewer."""
    ssim: Float[Tensor, "batch trajectory moment"]
    psnr: Float[Tensor, "batch trajectory moment"]
    nmse: Float[Tensor, "batch trajectory moment"]
    probabilities: Float[Tensor, "step batch trajectory col"] | None = None
    images: Float[Tensor, "moment batch trajectory row col"] | None = None
    """Reconstructions in the target's units."""
    score: Float[Tensor, "batch trajectory moment"] | None = None
    """The metric of the simulator; None if it is SSIM."""

    __repr__ = one_line


def action_uniforms(
    n_slices: int, n_trajectories: int, horizon: int, *key: SupportsIndex | str
) -> Float[Tensor, "slice trajectory step"]:
    """Return uniform numbers in [0, 1) for all draws of an evaluation, seeded by `key`."""
    generator = keyed_generator("actions", *key)
    return torch.rand(n_slices, n_trajectories, horizon, generator=generator)


@torch.no_grad()
def rollout(
    policy: Policy,
    simulator: Simulator,
    plan: Plan,
    *,
    uniforms: Float[Tensor, "batch trajectory column"] | None = None,
    replay: Int[Tensor, "batch trajectory column"] | None = None,
    keep_probabilities: bool = False,
    keep_images: bool = False,
) -> Trajectory:
    """Acquire the slices of a simulator by a policy.

    Args:
        policy: scores the columns.
        simulator: holds slices, reconstructor, protocol and metric.
        plan: start, columns and sampling.
        uniforms: random numbers for the draws of a policy that was trained with sampled columns; by
            default those of the plan. Other policies ignore them.
        replay: columns to acquire instead of those of the policy.
        keep_probabilities: also return the policy's distribution at every step.
        keep_images: also return every reconstruction.
    """
    policy = policy.bind(simulator.context)
    plan.check(simulator.batch.selectable)
    if replay is not None:
        _check_replay(simulator, replay, plan.start)
    elif uniforms is None and policy.is_stochastic and not plan.is_argmax:
        index = simulator.batch.index
        size = (int(index.max()) + 1, plan.n_trajectories, plan.horizon)
        uniforms = action_uniforms(*size, plan.seed)[index.cpu()]
        uniforms = uniforms.to(simulator.batch.kspace.device)
    given = replay if replay is not None else uniforms
    n_trajectories = 1 if given is None else given.shape[1]
    acquisition = Acquisition(simulator, plan, n_trajectories=n_trajectories)
    columns, moments, probabilities = [], [_measure(acquisition, keep_images)], []
    while n_next := acquisition.n_next:
        at = slice(acquisition.n_acquired, acquisition.n_acquired + n_next)
        scores, blocked = acquisition.scores(policy), acquisition.blocked
        own = None if given is None else given[:, :, at].flatten(0, 1)
        if own is not None and replay is not None:
            chosen = own
        else:
            chosen = choose_several(policy, scores, blocked, own, n_next)
        if keep_probabilities:
            probabilities.append(column_log_probabilities(scores, blocked).exp())
        columns.append(chosen)
        acquisition.measure(chosen)
        moments.append(_measure(acquisition, keep_images))
    acquisition.finish(type(policy).__name__)
    return _assemble(columns, moments, probabilities, n_trajectories)


def _check_replay(
    simulator: Simulator, replay: Int[Tensor, "batch trajectory column"], initial: Initial
) -> None:
    """Raise an error for a column that cannot be measured, which would corrupt the image."""
    selectable = simulator.batch.selectable
    start = start_mask(initial, selectable.shape, selectable.device)
    times = torch.nn.functional.one_hot(replay, selectable.shape[1]).sum(dim=-2)
    n_bad = int(((times > 1) | (times > 0) & (start | ~selectable)[:, None]).any(dim=-1).sum())
    if n_bad:
        raise ConfigError(
            f"{n_bad} of {times.shape[0] * times.shape[1]} replayed trajectories measure a column "
            "twice or outside the matrix; give each unmeasured column once"
        )


def _measure(acquisition: Acquisition, keep_images: bool) -> dict[str, Tensor]:
    simulator, state = acquisition.simulator, acquisition.state
    images, batch = simulator.images(state), simulator.batch
    target, data_range = batch.target[state.owner], batch.data_range[state.owner]
    return {
        "score": state.score,
        "ssim": simulator.ssim(state),
        "psnr": psnr(images, target, data_range=data_range),
        "nmse": nmse(images, target),
        **({"images": images} if keep_images else {}),
    }


def _assemble(
    columns: list[Tensor],
    moments: list[dict[str, Tensor]],
    probabilities: list[Tensor],
    n_trajectories: int,
) -> Trajectory:
    first, n_states = moments[0], len(moments[0]["score"])
    fold = (n_states // n_trajectories, n_trajectories)
    taken = torch.empty(n_states, 0, dtype=torch.long, device=first["ssim"].device)
    if columns:
        n_missing = columns[0].shape[1] - columns[-1].shape[1]
        taken = torch.nn.functional.pad(torch.cat(columns, 1), (0, n_missing), value=NOT_ACQUIRED)
    metrics = {
        name: torch.stack([moment[name] for moment in moments], dim=-1).view(*fold, -1)
        for name in ("score", "ssim", "psnr", "nmse")
    }
    if first["score"] is first["ssim"]:
        del metrics["score"]
    stacks = {}
    if probabilities:
        stacks["probabilities"] = torch.stack(probabilities).view(len(columns), *fold, -1)
    if "images" in first:
        images = torch.stack([moment["images"] for moment in moments])
        stacks["images"] = images.view(len(moments), *fold, *images.shape[2:])
    return Trajectory(columns=taken.view(*fold, taken.shape[1]), **metrics, **stacks)
