"""Run a policy from the start to its budget: a `Trajectory`."""

from dataclasses import dataclass
from typing import SupportsIndex, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.budget import check_budget
from kscout.acquisition.choose import check_chosen, choose_columns, column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.core import Policy
from kscout.errors import ConfigError
from kscout.metrics import nmse, psnr
from kscout.physics.sampling import center_mask
from kscout.randomness import keyed_generator


@final
@dataclass(frozen=True)
class Trajectory:
    """Columns that a policy acquired, and metrics of the images; `moment` 0 is the start.

    Axis `trajectory` runs over repeated acquisitions of one slice, `moment` over 0..horizon.
    """

    columns: Int[Tensor, "batch trajectory step"]
    ssim: Float[Tensor, "batch trajectory moment"]
    psnr: Float[Tensor, "batch trajectory moment"]
    nmse: Float[Tensor, "batch trajectory moment"]
    probabilities: Float[Tensor, "step batch trajectory col"] | None = None
    images: Float[Tensor, "moment batch trajectory row col"] | None = None
    """Reconstructions in the target's units."""


def action_uniforms(
    n_slices: int, n_trajectories: int, horizon: int, *key: SupportsIndex | str
) -> Float[Tensor, "slice trajectory step"]:
    """Return the numbers in [0, 1) that decide every draw of an evaluation, keyed by `key`."""
    generator = keyed_generator("actions", *key)
    return torch.rand(n_slices, n_trajectories, horizon, generator=generator)


@torch.no_grad()
def rollout(
    policy: Policy,
    simulator: Simulator,
    *,
    n_initial: int,
    horizon: int,
    uniforms: Float[Tensor, "batch trajectory step"] | None = None,
    replay: Int[Tensor, "batch trajectory step"] | None = None,
    keep_probabilities: bool = False,
    keep_images: bool = False,
) -> Trajectory:
    """Acquire `horizon` columns one at a time.

    Args:
        policy: scores the columns.
        simulator: holds slices, reconstructor and protocol.
        n_initial: central columns measured at the start.
        horizon: columns to acquire.
        uniforms: decide the draws of a stochastic policy; None takes the best column. A
            deterministic policy ignores them: all its trajectories are the same.
        replay: columns to acquire whatever the policy says.
        keep_probabilities: also return the policy's distribution at every step.
        keep_images: also return every reconstruction.
    """
    check_budget(simulator.batch.selectable, n_initial=n_initial, horizon=horizon)
    if replay is not None:
        _check_replay(simulator, replay, n_initial=n_initial)
    given = replay if replay is not None else uniforms
    n_trajectories = 1 if given is None else given.shape[1]
    paths = _Paths(simulator, n_initial, n_trajectories)
    columns, moments, probabilities = [], [_measure(simulator, paths.state, keep_images)], []
    is_any_blocked = torch.zeros((), dtype=torch.bool, device=simulator.batch.kspace.device)
    for step in range(horizon):
        scores = paths.scores(policy)
        blocked = simulator.blocked(paths.state)
        if replay is not None:
            chosen = replay[:, :, step].reshape(-1)
        else:
            at_step = None if uniforms is None else uniforms[:, :, step].reshape(-1)
            chosen = choose_columns(policy, scores, blocked, at_step)
        if keep_probabilities:
            probabilities.append(column_log_probabilities(scores, blocked).exp())
        is_any_blocked |= blocked.gather(-1, chosen[:, None]).any()
        paths.acquire(chosen)
        columns.append(chosen)
        moments.append(_measure(simulator, paths.state, keep_images))
    # Asked once: no step waits for the device.
    check_chosen(is_any_blocked, type(policy).__name__)
    return _assemble(columns, moments, probabilities, n_trajectories)


@final
class _Paths:
    """Trajectories of every slice, side by side; equal states are reconstructed and seen once."""

    def __init__(self, simulator: Simulator, n_initial: int, n_trajectories: int) -> None:
        self.simulator, self.n_trajectories = simulator, n_trajectories
        self.distinct = simulator.start(n_initial)
        self.slot = self.distinct.owner.repeat_interleave(n_trajectories)
        self.state = self.distinct.repeated(n_trajectories)

    def scores(self, policy: Policy) -> Float[Tensor, "state col"]:
        """Return the policy's scores."""
        # On CUDA distinct states are padded to the number of states: sharing would save nothing.
        if len(self.distinct) == len(self.state):
            return policy(self.simulator.observe(policy, self.state))
        return policy(self.simulator.observe(policy, self.distinct))[self.slot]

    def acquire(self, column: Int[Tensor, " state"]) -> None:
        """Measure one more column of every trajectory."""
        if self.n_trajectories == 1:
            self.state = self.distinct = self.simulator.acquire(self.state, column)
            return
        branches = self.simulator.branch(self.state, column[:, None])
        self.distinct, self.slot = branches.state, branches.slot[:, 0]
        self.state = branches.every()


def _check_replay(
    simulator: Simulator, replay: Int[Tensor, "batch trajectory step"], *, n_initial: int
) -> None:
    """Raise where a column cannot be measured: adding it twice would corrupt the image silently."""
    selectable = simulator.batch.selectable
    start = center_mask(selectable.shape[1], n_initial).to(selectable.device)
    times = torch.nn.functional.one_hot(replay, selectable.shape[1]).sum(dim=-2)
    n_bad = int(((times > 1) | (times > 0) & (start | ~selectable)[:, None]).any(dim=-1).sum())
    if n_bad:
        raise ConfigError(
            f"{n_bad} of {times.shape[0] * times.shape[1]} replayed trajectories measure a column "
            "twice or outside the matrix; give each unmeasured column once"
        )


_Moment = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _measure(simulator: Simulator, state: State, keep_images: bool) -> _Moment:
    images, batch = simulator.images(state), simulator.batch
    target, data_range = batch.target[state.owner], batch.data_range[state.owner]
    return (
        state.score,
        psnr(images, target, data_range=data_range),
        nmse(images, target),
        images if keep_images else None,
    )


def _assemble(
    columns: list[Tensor], moments: list[_Moment], probabilities: list[Tensor], n_trajectories: int
) -> Trajectory:
    n_states = len(moments[0][0])
    fold = (n_states // n_trajectories, n_trajectories)
    ssim, psnr_, nmse_ = (
        torch.stack([moment[i] for moment in moments], dim=-1).view(*fold, -1)  # type: ignore[misc]
        for i in range(3)
    )
    images = [moment[3] for moment in moments if moment[3] is not None]
    empty = torch.empty(n_states, 0, dtype=torch.long, device=ssim.device)
    return Trajectory(
        columns=(torch.stack(columns, dim=-1) if columns else empty).view(*fold, -1),
        ssim=ssim,
        psnr=psnr_,
        nmse=nmse_,
        probabilities=torch.stack(probabilities).view(len(columns), *fold, -1)
        if probabilities
        else None,
        images=torch.stack(images).view(len(moments), *fold, *images[0].shape[1:])
        if images
        else None,
    )
