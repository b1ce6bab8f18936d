"""Run a policy from the start to its budget, and return a `Trajectory`."""

from dataclasses import dataclass
from typing import SupportsIndex, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.choose import choose_several, column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import NOT_ACQUIRED, Acquisition
from kscout.acquisition.plan import Plan
from kscout.core import Policy
from kscout.errors import ConfigError
from kscout.metrics import nmse, psnr
from kscout.physics.sampling import Initial, start_mask
from kscout.randomness import keyed_generator
from kscout.shapes import one_line


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
    plan.check_policy(policy)
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
        columns.append(acquisition.limit(chosen, policy, scores))
        acquisition.measure(columns[-1])
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


_Moment = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def _measure(acquisition: Acquisition, keep_images: bool) -> _Moment:
    simulator, state = acquisition.simulator, acquisition.state
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
