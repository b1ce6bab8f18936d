"""The paper's two policy gradient estimators, greedy and non-greedy, top to bottom.

Both draw q columns with replacement and use the mean reward of the q as the baseline
(Kool et al. 2019), so that each loss carries the factor 1 / (q - 1). The scalars returned by
`greedy_loss` and `non_greedy_loss` are minimized; `greedy_gradients` and `non_greedy_gradients`
run a batch from the start to its budget and add the losses' gradients to the policies' own.

Several policies (seeds) may learn in lockstep: the slices of the simulator are divided among them
in equal consecutive parts, and all reconstructions are made together. Randomness comes in as
numbers, never as a generator, so that the same function runs eagerly or inside a CUDA graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import column_log_probabilities, draw_columns
from kscout.acquisition.episode import Simulator
from kscout.core import Observation, Policy


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


def _score_columns(policies: Sequence[Policy], seen: Observation) -> Float[Tensor, "batch col"]:
    """Let each policy score its own part of the batch."""
    parts = zip(
        policies, seen.image.chunk(len(policies)), seen.mask.chunk(len(policies)), strict=True
    )
    scores = [
        policy(Observation(image=image, mask=mask, step=seen.step)) for policy, image, mask in parts
    ]
    return torch.cat(scores)


def greedy_gradients(
    policies: Sequence[Policy],
    simulator: Simulator,
    *,
    n_initial: int,
    uniforms: Float[Tensor, "state step q"],
    followed: Int[Tensor, " step policy"],
    replay: Int[Tensor, "step state q"] | None = None,
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
    """
    n_policies, n_states, q = len(policies), len(simulator.batch), uniforms.shape[-1]
    state = simulator.start(n_initial)
    first_child = torch.arange(n_states, device=uniforms.device).view(n_policies, -1) * q
    columns, chosen_log_probs, rewards, losses = [], [], [], []
    for step in range(uniforms.shape[1]):
        seen = Observation(image=state.image, mask=state.mask, step=step)
        log_probs = column_log_probabilities(
            _score_columns(policies, seen), simulator.blocked(state)
        )
        drawn = (
            draw_columns(log_probs.detach(), uniforms[:, step]) if replay is None else replay[step]
        )
        children = simulator.branch(state, drawn)
        reward = children.score.view(n_states, q) - state.score[:, None]
        taken = log_probs.gather(-1, drawn)
        loss = greedy_loss(taken.view(n_policies, -1, q), reward.view(n_policies, -1, q))
        loss.sum().backward()
        state = children.rows((first_child + followed[step][:, None]).view(-1))
        columns.append(drawn)
        chosen_log_probs.append(taken.detach())
        rewards.append(reward)
        losses.append(loss.detach())
    return Estimate(
        torch.stack(columns),
        torch.stack(chosen_log_probs),
        torch.stack(rewards),
        torch.stack(losses),
        state.score.view(n_policies, -1).mean(dim=-1),
    )


def non_greedy_gradients(
    policies: Sequence[Policy],
    simulator: Simulator,
    *,
    n_initial: int,
    uniforms: Float[Tensor, "state step q"],
    gammas: Sequence[float],
    n_at_once: int = 128,
    replay: Int[Tensor, "step state q"] | None = None,
) -> Estimate:
    """Add the non-greedy estimator's gradients for one batch.

    The q columns of the first step start q trajectories. No graph is kept while they run: what
    the policy saw is stored, and the log-probabilities are computed again, `n_at_once` images at a
    time, when all rewards are known. So the memory of the backward pass does not grow with the
    horizon.

    Args:
        policies: one, or several in lockstep.
        simulator: holds the slices, divided among the policies in equal consecutive parts.
        n_initial: central columns measured at the start.
        uniforms: numbers in [0, 1) that decide the draws.
        gammas: discount of each policy.
        n_at_once: images per policy whose gradients are computed together.
        replay: columns to take instead of drawing.
    """
    n_slices, horizon, q = uniforms.shape
    state = simulator.start(n_initial)
    visited: list[_Transition] = []
    rewards = []
    for step in range(horizon):
        seen = Observation(image=state.image, mask=state.mask, step=step)
        blocked = simulator.blocked(state)
        with torch.no_grad():
            log_probs = column_log_probabilities(_score_columns(policies, seen), blocked)
        # One state per slice draws q columns at the first step; later q states draw one each.
        drawn = (
            draw_columns(log_probs, uniforms[:, step].reshape(len(state), -1))
            if replay is None
            else replay[step].reshape(len(state), -1)
        )
        visited.append(_Transition(seen, blocked, drawn, log_probs.gather(-1, drawn)))
        before = state.score.view(n_slices, -1)
        state = simulator.branch(state, drawn)
        rewards.append(state.score.view(n_slices, q) - before)
    reward = torch.stack(rewards)
    weights = _loss_weights(reward, gammas)
    losses = [
        _add_gradients(policies, transition, weight, n_at_once)
        for transition, weight in zip(visited, weights, strict=True)
    ]
    return Estimate(
        torch.stack([transition.columns.view(n_slices, q) for transition in visited]),
        torch.stack([transition.log_probs.view(n_slices, q) for transition in visited]),
        reward,
        torch.stack(losses),
        state.score.view(len(policies), -1).mean(dim=-1),
    )


@final
@dataclass(frozen=True)
class _Transition:
    """What the policies saw and chose at one step."""

    seen: Observation
    blocked: Bool[Tensor, "state col"]
    columns: Int[Tensor, "state draw"]
    log_probs: Float[Tensor, "state draw"]


def _loss_weights(
    rewards: Float[Tensor, "step slice q"], gammas: Sequence[float]
) -> Float[Tensor, "step slice q"]:
    """Return the factor of each log-probability in `non_greedy_loss`."""
    scaled = [
        -returns_to_go(part, gamma) / (part.shape[-1] - 1) / part.shape[1]
        for part, gamma in zip(rewards.chunk(len(gammas), dim=1), gammas, strict=True)
    ]
    return torch.cat(scaled, dim=1)


def _add_gradients(
    policies: Sequence[Policy],
    transition: _Transition,
    weights: Float[Tensor, "slice q"],
    n_at_once: int,
) -> Float[Tensor, " policy"]:
    """Compute one step's log-probabilities again, with gradients, part by part."""
    seen, columns = transition.seen, transition.columns
    stored = (seen.image, seen.mask, columns, transition.blocked, weights.reshape(columns.shape))
    losses = []
    for policy, *own in zip(policies, *(x.chunk(len(policies)) for x in stored), strict=True):
        total = torch.zeros((), device=columns.device)
        for image, mask, column, blocked, weight in zip(
            *(x.split(n_at_once) for x in own), strict=True
        ):
            scores = policy(Observation(image=image, mask=mask, step=seen.step))
            log_probs = column_log_probabilities(scores, blocked).gather(-1, column)
            loss = (log_probs * weight).sum()
            loss.backward()
            total = total + loss.detach()
        losses.append(total)
    return torch.stack(losses)
