"""The paper's two policy gradient estimators, greedy and non-greedy, top to bottom.

Both draw q columns with replacement and use the mean reward of the q as the baseline
(Kool et al. 2019), so that each loss carries the factor 1 / (q - 1). The scalars returned by
`greedy_loss` and `non_greedy_loss` are minimized; `greedy_gradients` and `non_greedy_gradients`
run a batch from the start to its budget and add the losses' gradients to the policies' own.

Several policies (seeds) may learn in lockstep: the slices of the simulator are divided among them
in equal consecutive parts, and all reconstructions are made together. Randomness comes in as
numbers, never as a generator, so that the same function runs eagerly or inside a CUDA graph.

Parameters do not change within a batch, so columns are chosen first, without a graph, and the
gradients are computed at the end, from what the policies saw or from features that they kept. Only
the greedy estimator on a CPU, where none are kept, takes each step's gradients at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import Drawn, column_log_probabilities, draw_unmeasured
from kscout.acquisition.episode import Simulator, State
from kscout.core import Observation, Policy
from kscout.kernels import count_on
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.policies.conv_kept import KeptConvPolicy
from kscout.training.streams import side_by_side

N_AT_ONCE = {"cpu": 16, "cuda": 512}
"""Images whose gradients are computed together, by kind of device."""

N_KEPT_ON_CPU = 64
"""Images whose graph may be kept on a CPU from the choice of columns until rewards are known."""

_MEMORY_KEPT = 0.5
"""Share of a GPU's memory that features may take from the choice until the gradients."""

_BYTES_KEPT_ON_CPU = 2**28
"""The same on a CPU, greedy only. With more images, nothing is gained by waiting for the last."""

_KEEPING = (HalfPrecisionConvPolicy, KeptConvPolicy)
"""Policies that can keep their features."""


def greedy_loss(
    log_probs: Float[Tensor, "*lead batch q"], rewards: Float[Tensor, "*lead batch q"]
) -> Float[Tensor, "*lead"]:
    """Return the greedy estimator's loss for one step, as a mean over the batch.

    Args:
        log_probs: log-probabilities of the q columns drawn from one state.
        rewards: gain of each column.
    """
    advantages = rewards - rewards.mean(dim=-1, keepdim=True)
    return -(log_probs * advantages).sum(dim=-1).mean(dim=-1) / (rewards.shape[-1] - 1)


def returns_to_go(
    rewards: Float[Tensor, "step *lead batch q"], gamma: float
) -> Float[Tensor, "step *lead batch q"]:
    """Return the discounted sum of future advantages over the mean of the q trajectories."""
    advantages = rewards - rewards.mean(dim=-1, keepdim=True)
    returns = [advantages[-1]]
    for step in range(len(rewards) - 2, -1, -1):
        returns.append(advantages[step] + gamma * returns[-1])
    return torch.stack(returns[::-1])


def non_greedy_loss(
    log_probs: Float[Tensor, "step *lead batch q"],
    rewards: Float[Tensor, "step *lead batch q"],
    gamma: float,
) -> Float[Tensor, "*lead"]:
    """Return the non-greedy estimator's loss for whole trajectories, as a mean over the batch.

    Args:
        log_probs: log-probabilities of the columns that q trajectories chose.
        rewards: their gains.
        gamma: discount in [0, 1]; the paper's NGreedy is 1.
    """
    weighted = log_probs * returns_to_go(rewards, gamma)
    return -weighted.sum(dim=(0, -1)).mean(dim=-1) / (rewards.shape[-1] - 1)


@final
@dataclass(frozen=True)
class Estimate:
    """What one batch gave, beside the gradients; `policy` counts those in lockstep."""

    columns: Int[Tensor, "step state q"]
    log_probs: Float[Tensor, "step state q"]
    rewards: Float[Tensor, "step state q"]
    losses: Float[Tensor, "step policy"]
    """Each step's share of the loss."""
    final_score: Float[Tensor, " policy"]
    """Mean SSIM at the end of the acquisitions that were followed."""


def greedy_gradients(
    policies: Sequence[Policy],
    simulator: Simulator,
    *,
    n_initial: int,
    uniforms: Float[Tensor, "state step q"],
    followed: Int[Tensor, " step policy"],
    replay: Int[Tensor, "step state q"] | None = None,
    n_at_once: int | None = None,
) -> Estimate:
    """Add the greedy estimator's gradients for one batch.

    Args:
        policies: one, or several in lockstep.
        simulator: holds the slices, divided among the policies in equal consecutive parts.
        n_initial: central columns measured at the start.
        uniforms: numbers in [0, 1) that decide the draws.
        followed: which of the q columns each policy goes on with; one index for its whole batch,
            as in the authors' code.
        replay: columns to take instead of drawing.
        n_at_once: images per policy whose gradients are computed together.
    """
    state = simulator.start(n_initial)
    n_states = len(state) * uniforms.shape[1]
    is_kept = _keep_features(policies, n_states, bytes_on_cpu=_BYTES_KEPT_ON_CPU)
    visited: list[Transition] = []
    before, after = [], []
    # What is made for all steps at once costs a GPU no more than for one.
    draws = uniforms.transpose(0, 1).contiguous()
    choices = followed.repeat_interleave(len(state) // len(policies), dim=1)
    is_small = n_at_once is None and len(state) <= N_KEPT_ON_CPU
    goes_back_at_once = is_small and _is_on_cpu(state) and not is_kept
    for step in range(uniforms.shape[1]):
        given = None if replay is None else replay[step]
        with torch.set_grad_enabled(goes_back_at_once):
            logits = _score(policies, state)
        visited.append(_choose(logits.detach(), simulator, state, draws[step], given))
        branches = simulator.branch(state, visited[-1].columns)
        before.append(state.score)
        after.append(branches.score)
        if goes_back_at_once:
            weight = _greedy_weights(after[-1] - before[-1][:, None], len(policies))
            _backward(logits, visited[-1].blocked, visited[-1].columns, weight)
        state = branches.follow(choices[step])
    reward = torch.stack(after) - torch.stack(before)[..., None]
    weights = _greedy_weights(reward, len(policies))
    if not goes_back_at_once:
        _add_gradients(policies, visited, list(weights), n_at_once)
    return _estimate(visited, reward, weights, state, len(policies))


def _greedy_weights(
    rewards: Float[Tensor, "*step state q"], n_policies: int
) -> Float[Tensor, "*step state q"]:
    """Return what each log-probability is multiplied by in the loss, summed over states."""
    advantages = rewards - rewards.mean(dim=-1, keepdim=True)
    n_slices = rewards.shape[-2] // n_policies
    return -advantages / ((rewards.shape[-1] - 1) * n_slices)


def _is_on_cpu(state: State) -> bool:
    return state.image.device.type == "cpu"


def non_greedy_gradients(
    policies: Sequence[Policy],
    simulator: Simulator,
    *,
    n_initial: int,
    uniforms: Float[Tensor, "state step q"],
    gammas: Sequence[float],
    replay: Int[Tensor, "step state q"] | None = None,
    n_at_once: int | None = None,
) -> Estimate:
    """Add the non-greedy estimator's gradients for one batch.

    The q columns of the first step start q trajectories.

    Args:
        policies: one, or several in lockstep.
        simulator: holds the slices, divided among the policies in equal consecutive parts.
        n_initial: central columns measured at the start.
        uniforms: numbers in [0, 1) that decide the draws.
        gammas: discount of each policy.
        replay: columns to take instead of drawing.
        n_at_once: images per policy whose gradients are computed together.
    """
    n_slices, horizon, q = uniforms.shape
    state = simulator.start(n_initial)
    # q trajectories would soon fill a CPU's share, and memory must not grow with the horizon there.
    _keep_features(policies, n_slices * (1 + q * (horizon - 1)), bytes_on_cpu=0)
    visited: list[Transition] = []
    scores = [state.score[:, None].expand(-1, q)]
    draws = uniforms.transpose(0, 1).contiguous()
    for step in range(horizon):
        # One state per slice draws q columns at the first step; later q states draw one each.
        per_state = draws[step].reshape(len(state), -1)
        given = None if replay is None else replay[step].reshape(len(state), -1)
        with torch.no_grad():
            logits = _score(policies, state)
        visited.append(_choose(logits, simulator, state, per_state, given))
        state = simulator.branch(state, visited[-1].columns).every()
        scores.append(state.score.view(n_slices, q))
    reward = torch.stack(scores).diff(dim=0)
    scaled = [
        -returns_to_go(part, gamma) / ((q - 1) * part.shape[1])
        for part, gamma in zip(reward.chunk(len(policies), dim=1), gammas, strict=True)
    ]
    weights = torch.cat(scaled, dim=1)
    _add_gradients(policies, visited, list(weights), n_at_once)
    return _estimate(visited, reward, weights, state, len(policies))


@final
@dataclass(frozen=True)
class Transition:
    """What the policies saw and chose at one step."""

    image: Float[Tensor, "state row col"]
    mask: Bool[Tensor, "state col"]
    step: Int[Tensor, " state"]
    blocked: Bool[Tensor, "state col"]
    columns: Int[Tensor, "state draw"]
    log_probs: Float[Tensor, "state draw"]


def _score(policies: Sequence[Policy], state: State) -> Float[Tensor, "state col"]:
    """Let each policy score the columns of its own part of the states."""
    parts = zip(
        policies, state.image.chunk(len(policies)), state.mask.chunk(len(policies)), strict=True
    )
    calls = [
        partial(policy, Observation(image=image, mask=mask, step=state.step))
        for policy, image, mask in parts
    ]
    return _join(side_by_side(calls, state.image.device))


@torch.no_grad()
def _choose(
    scores: Float[Tensor, "state col"],
    simulator: Simulator,
    state: State,
    uniforms: Float[Tensor, "state draw"],
    replay: Int[Tensor, "state draw"] | None,
) -> Transition:
    """Choose columns by the policies' scores."""
    if replay is None:
        selectable = simulator.batch.selectable
        drawn = draw_unmeasured(scores, state.mask, selectable, state.owner, uniforms)
    else:
        blocked = simulator.blocked(state)
        log_probs = column_log_probabilities(scores.float(), blocked)
        drawn = Drawn(blocked, replay, log_probs.gather(-1, replay))
    step = count_on(scores.device, state.step).expand(len(state))
    return Transition(state.image, state.mask, step, *drawn)


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Join what several policies gave; what one gave is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _add_gradients(
    policies: Sequence[Policy],
    visited: Sequence[Transition],
    weights: Sequence[Float[Tensor, "slice q"]],
    n_at_once: int | None,
) -> None:
    """Compute all log-probabilities again, with gradients, and add those of the loss.

    No graph is kept while the columns are chosen: what the policies saw is stored, so the backward
    pass takes as much memory as `n_at_once` images do, whatever the horizon. Steps are joined, so
    that a GPU has many images to work on at once. A policy that kept its features since the choice
    recalls them, in the order of the steps, instead of looking at the images again.
    """
    limit = n_at_once or N_AT_ONCE[visited[0].image.device.type]
    for number, policy in enumerate(policies):
        own = [
            (
                *(x.chunk(len(policies))[number] for x in _tensors(transition)),
                weight.reshape(transition.columns.shape).chunk(len(policies))[number],
            )
            for transition, weight in zip(visited, weights, strict=True)
        ]
        begin = 0
        for same_width in _by_width(own):
            joined = [torch.cat(x) for x in zip(*same_width, strict=True)]
            for image, mask, step, blocked, columns, _, weight in zip(
                *(x.split(limit) for x in joined), strict=True
            ):
                if isinstance(policy, _KEEPING) and policy.kept is not None:
                    scores = policy.recall(image, begin)
                else:
                    scores = policy(Observation(image=image, mask=mask, step=step))
                begin += len(image)
                _backward(scores, blocked, columns, weight)


def _backward(
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    columns: Int[Tensor, "state draw"],
    weights: Float[Tensor, "state draw"],
) -> None:
    """Add the gradients of the weighted log-probabilities' sum to the policies' own."""
    log_probs = column_log_probabilities(scores.float(), blocked)
    (log_probs.gather(-1, columns) * weights).sum().backward()


def _keep_features(policies: Sequence[Policy], n_states: int, *, bytes_on_cpu: int) -> bool:
    """Have policies that can do so keep what they compute for so many states of all policies.

    Returns:
        Whether all of them do.
    """
    n_own = n_states // len(policies)
    for policy in policies:
        if isinstance(policy, _KEEPING):
            policy.kept = None
            on_cpu = isinstance(policy, KeptConvPolicy)
            limit = bytes_on_cpu if on_cpu else int(_MEMORY_KEPT * _device_memory())
            if len(policies) * policy.n_bytes_kept(n_own) <= limit:
                policy.keep(n_own)
    return all(isinstance(policy, _KEEPING) and policy.kept is not None for policy in policies)


@cache
def _device_memory() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


def _tensors(transition: Transition) -> tuple[Tensor, ...]:
    return tuple(getattr(transition, field.name) for field in fields(transition))


def _by_width(own: list[tuple[Tensor, ...]]) -> list[list[tuple[Tensor, ...]]]:
    """Group steps by the number of columns drawn per state: it differs at the first step only."""
    widths = dict.fromkeys(parts[4].shape[1] for parts in own)
    return [[parts for parts in own if parts[4].shape[1] == width] for width in widths]


def _estimate(
    visited: Sequence[Transition],
    rewards: Float[Tensor, "step slice q"],
    weights: Float[Tensor, "step slice q"],
    state: State,
    n_policies: int,
) -> Estimate:
    shape = rewards.shape
    log_probs = torch.stack([transition.log_probs.view(shape[1:]) for transition in visited])
    return Estimate(
        torch.stack([transition.columns.view(shape[1:]) for transition in visited]),
        log_probs,
        rewards,
        (log_probs * weights).unflatten(1, (n_policies, -1)).sum(dim=(-2, -1)),
        state.score.view(n_policies, -1).mean(dim=-1),
    )
