"""The losses of the paper's two policy gradient estimators (arXiv 2010.16262, section 4).

For q columns drawn with replacement, the mean reward of the q is the baseline (Kool et al. 2019),
which makes 1 / (q - 1) the factor of an unbiased estimate. The losses are scalars to be minimized;
`kscout.training.algorithms` runs acquisitions and computes their gradients.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def advantages(rewards: Float[Tensor, "*lead q"]) -> Float[Tensor, "*lead q"]:
    """Return how much each of the q rewards exceeds their mean, `r_i - mean_j r_j`."""
    return rewards - rewards.mean(dim=-1, keepdim=True)


def returns_to_go(
    rewards: Float[Tensor, "step *lead q"], gamma: float
) -> Float[Tensor, "step *lead q"]:
    """Return the discounted sum of later advantages, `sum_{t' >= t} gamma^(t' - t) A_{i, t'}`."""
    own = advantages(rewards)
    returns = [own[-1]]
    for step in range(len(rewards) - 2, -1, -1):
        returns.append(own[step] + gamma * returns[-1])
    return torch.stack(returns[::-1])


def greedy_loss(
    log_probs: Float[Tensor, "*lead batch q"], rewards: Float[Tensor, "*lead batch q"]
) -> Float[Tensor, "*lead"]:
    """Return the greedy estimator's loss of one step, as a mean over the batch.

    `-1 / (q - 1) sum_i log pi(a_i | s) (r_i - mean_j r_j)`

    Args:
        log_probs: log-probabilities of the q columns drawn from one state.
        rewards: gain of each column.
    """
    weighted = log_probs * advantages(rewards)
    return -weighted.sum(dim=-1).mean(dim=-1) / (rewards.shape[-1] - 1)


def non_greedy_loss(
    log_probs: Float[Tensor, "step *lead batch q"],
    rewards: Float[Tensor, "step *lead batch q"],
    gamma: float,
) -> Float[Tensor, "*lead"]:
    """Return the non-greedy estimator's loss of whole trajectories, as a mean over the batch.

    `-1 / (q - 1) sum_i sum_t log pi(a_it | s_it) R_it` with
    `R_it = sum_{t' >= t} gamma^(t' - t) (r_it' - mean_j r_jt')`

    Args:
        log_probs: log-probabilities of the columns that q trajectories chose.
        rewards: their gains.
        gamma: discount in [0, 1]; the paper's NGreedy is 1.
    """
    weighted = log_probs * returns_to_go(rewards, gamma)
    return -weighted.sum(dim=(0, -1)).mean(dim=-1) / (rewards.shape[-1] - 1)
