"""Run a policy from the start to its budget, and return a `Trajectory`."""

from dataclasses import dataclass
from typing import SupportsIndex, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.budget import check_budget
from kscout.acquisition.choose import check_chosen, choose_several, column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.acquisition.pace import Pace, check_promises
from kscout.acquisition.state import State
from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.metrics import nmse, psnr
from kscout.physics.sampling import Initial, start_mask
from kscout.randomness import keyed_generator
from kscout.shapes import one_line

NOT_ACQUIRED = -1
"""Marks steps in which a finished slice acquired no column."""


@final
@dataclass(frozen=True, repr=False)
class Trajectory:
    """Acquired columns, and metrics of the images; `moment` 0 is the start.

    Axis `trajectory` runs over repeated acquisitions of one slice, `moment` over the start and the
    image after each step. A finished slice keeps its last image and metrics.
    """

    columns: Int[Tensor, "batch trajectory column"]
    """Columns in the order of acquisition; `NOT_ACQUIRED` if a step acquired fewer columns."""
    ssim: Float[Tensor, "batch trajectory moment"]
    psnr: Float[Tensor, "batch trajectory moment"]
    nmse: Float[Tensor, "batch trajectory moment"]
    probabilities: Float[Tensor, "step batch trajectory col"] | None = None
    images: Float[Tensor, "moment batch trajectory row col"] | None = None
    """Reconstructions in the target's units."""
    score: Float[Tensor, "batch trajectory moment"] | None = None
    """The metric of the simulator; None if it is SSIM."""

    __repr__ = one_line

    @property
    def n_acquired(self) -> Int[Tensor, "batch trajectory"]:
        """Columns acquired after the start."""
        return (self.columns != NOT_ACQUIRED).sum(dim=-1)


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
    *,
    n_initial: Initial,
    horizon: int | Int[Tensor, " batch"],
    columns_per_step: int = 1,
    stop_below: float | None = None,
    most: int | None = None,
    uniforms: Float[Tensor, "batch trajectory column"] | None = None,
    is_argmax: bool = False,
    replay: Int[Tensor, "batch trajectory column"] | None = None,
    keep_probabilities: bool = False,
    keep_images: bool = False,
) -> Trajectory:
    """Acquire `horizon` columns, by default one per step.

    Args:
        policy: scores the columns.
        simulator: holds slices, reconstructor and protocol.
        n_initial: central columns measured at the start, columns, or a mask per slice.
        horizon: columns to acquire, one number or one per slice.
        columns_per_step: columns chosen before each reconstruction: the best ones, or draws
            without replacement; the last step may acquire fewer.
        stop_below: a slice ends before a step in which no column has this predicted gain in SSIM;
            for policies with `gain_units`.
        most: the longest horizon of all batches, so all have the same number of moments.
        uniforms: random numbers for the draws of a policy that was trained with sampled columns; by
            default those of one trajectory with seed 0. Other policies ignore them.
        is_argmax: without `uniforms`, acquire the best columns of every policy.
        replay: columns to acquire instead of those of the policy.
        keep_probabilities: also return the policy's distribution at every step.
        keep_images: also return every reconstruction.
    """
    pace = Pace(horizon, columns_per_step, stop_below, most)
    check_promises(policy, stop_below)
    policy = policy.bind(simulator.context)
    check_budget(simulator.batch.selectable, n_initial=n_initial, horizon=horizon)
    if replay is not None:
        _check_replay(simulator, replay, n_initial=n_initial)
    if uniforms is None and replay is None and policy.is_stochastic and not is_argmax:
        most_columns = int(torch.as_tensor(horizon).max()) if most is None else most
        index = simulator.batch.index
        every = action_uniforms(int(index.max()) + 1, 1, most_columns, 0)
        uniforms = every[index.cpu()].to(simulator.batch.kspace.device)
    given = replay if replay is not None else uniforms
    n_trajectories = 1 if given is None else given.shape[1]
    paths = _Paths(simulator, pace, n_initial, n_trajectories)
    columns, moments, probabilities = [], [_measure(simulator, paths.state, keep_images)], []
    is_any_bad = torch.zeros((), dtype=torch.bool, device=simulator.batch.kspace.device)
    for step in range(pace.n_steps):
        at = slice(step * columns_per_step, step * columns_per_step + pace.n_at(step))
        scores = paths.scores(policy, at.start)
        blocked = simulator.blocked(paths.state)
        if replay is not None:
            chosen = replay[:, :, at].flatten(0, 1)
            is_bad = blocked.gather(-1, chosen)
        else:
            own = None if uniforms is None else uniforms[:, :, at].flatten(0, 1)
            chosen, is_bad = choose_several(policy, scores, blocked, own, at.stop - at.start)
        if keep_probabilities:
            probabilities.append(column_log_probabilities(scores, blocked).exp())
        if not pace.is_plain:
            paths.is_over |= pace.stops(policy, scores, paths.state, blocked, at.start)
            n_wanted = pace.n_wanted(step, paths.state.owner, paths.is_over)
            is_left_out = torch.arange(chosen.shape[1], device=chosen.device) >= n_wanted[:, None]
            chosen, is_bad = chosen.masked_fill(is_left_out, NOT_ACQUIRED), is_bad & ~is_left_out
            paths.is_over |= n_wanted < columns_per_step
        is_any_bad |= is_bad.any()
        paths.acquire(chosen)
        columns.append(chosen)
        moments.append(_measure(simulator, paths.state, keep_images))
    # One check at the end: no step synchronizes with the device.
    check_chosen(is_any_bad, type(policy).__name__)
    return _assemble(columns, moments, probabilities, n_trajectories)


@final
class _Paths:
    """Adjacent trajectories of every slice; equal states are reconstructed and scored once."""

    def __init__(
        self, simulator: Simulator, pace: Pace, initial: Initial, n_trajectories: int
    ) -> None:
        self.simulator, self.pace, self.n_trajectories = simulator, pace, n_trajectories
        self.distinct = simulator.start(initial)
        self.slot = self.distinct.owner.repeat_interleave(n_trajectories)
        self.state = self.distinct.repeated(n_trajectories)
        self.is_over = torch.zeros_like(self.state.owner, dtype=torch.bool)

    def scores(self, policy: Policy, n_acquired: int) -> Float[Tensor, "state col"]:
        """Return the scores of the policy; zeros for finished acquisitions."""
        if not self.pace.is_plain:
            scores = torch.zeros(self.state.mask.shape, device=self.is_over.device)
            left = (~self.is_over).nonzero()[:, 0]
            if len(left):
                scores[left] = policy(self._seen(policy, self.state.rows(left), n_acquired)).to(
                    scores.dtype
                )
            return scores
        # On CUDA distinct states are padded to the number of states: sharing would save nothing.
        if len(self.distinct) == len(self.state):
            return policy(self._seen(policy, self.state, n_acquired))
        return policy(self._seen(policy, self.distinct, n_acquired))[self.slot]

    def _seen(self, policy: Policy, state: State, n_acquired: int) -> Observation:
        n_left = self.pace.left(n_acquired, state.owner)
        return self.simulator.observe(policy, state, n_left=n_left)

    def acquire(self, columns: Int[Tensor, "state draw"]) -> None:
        """Measure columns of every trajectory, except `NOT_ACQUIRED`."""
        if not self.pace.is_plain:
            mask = self.state.mask.new_zeros(len(columns), self.state.mask.shape[1] + 1)
            # `NOT_ACQUIRED` is written to an extra entry, which is removed.
            mask = mask.scatter(-1, columns % mask.shape[1], True)[:, :-1]
            self.state = self.distinct = self.simulator.grow(self.state, self.state.mask | mask)
            return
        if self.n_trajectories == 1:
            self.state = self.distinct = self.simulator.acquire(self.state, columns[:, 0])
            return
        branches = self.simulator.branch(self.state, columns)
        self.distinct, self.slot = branches.state, branches.slot[:, 0]
        self.state = branches.every()


def _check_replay(
    simulator: Simulator, replay: Int[Tensor, "batch trajectory column"], *, n_initial: Initial
) -> None:
    """Raise an error for a column that cannot be measured, which would corrupt the image."""
    selectable = simulator.batch.selectable
    start = start_mask(n_initial, selectable.shape, selectable.device)
    times = torch.nn.functional.one_hot(replay, selectable.shape[1]).sum(dim=-2)
    n_bad = int(((times > 1) | (times > 0) & (start | ~selectable)[:, None]).any(dim=-1).sum())
    if n_bad:
        raise ConfigError(
            f"{n_bad} of {times.shape[0] * times.shape[1]} replayed trajectories measure a column "
            "twice or outside the matrix; give each unmeasured column once"
        )


_Moment = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def _measure(simulator: Simulator, state: State, keep_images: bool) -> _Moment:
    images, batch = simulator.images(state), simulator.batch
    target, data_range = batch.target[state.owner], batch.data_range[state.owner]
    return (
        state.score,
        simulator.ssim(state),
        psnr(images, target, data_range=data_range),
        nmse(images, target),
        images if keep_images else None,
    )


def _assemble(
    columns: list[Tensor], moments: list[_Moment], probabilities: list[Tensor], n_trajectories: int
) -> Trajectory:
    n_states = len(moments[0][0])
    fold = (n_states // n_trajectories, n_trajectories)
    score, ssim, psnr_, nmse_ = (
        torch.stack([moment[i] for moment in moments], dim=-1).view(*fold, -1)  # type: ignore[misc]
        for i in range(4)
    )
    images = [moment[4] for moment in moments if moment[4] is not None]
    empty = torch.empty(n_states, 0, dtype=torch.long, device=ssim.device)
    taken = torch.cat([empty, *columns], dim=-1)
    if columns:
        n_missing = columns[0].shape[1] - columns[-1].shape[1]
        taken = torch.nn.functional.pad(taken, (0, n_missing), value=NOT_ACQUIRED)
    return Trajectory(
        columns=taken.view(*fold, taken.shape[1]),
        ssim=ssim,
        psnr=psnr_,
        nmse=nmse_,
        probabilities=torch.stack(probabilities).view(len(columns), *fold, -1)
        if probabilities
        else None,
        images=torch.stack(images).view(len(moments), *fold, *images[0].shape[1:])
        if images
        else None,
        score=None if moments[0][0] is moments[0][1] else score,
    )
