"""From column scores to a distribution over unmeasured columns, and to a column."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.core import Policy
from kscout.kernels.choosing import choose

MEASURED_LOGIT = -1e7
"""Logit of a column that may not be chosen; its probability is exactly zero in float32."""


def column_log_probabilities(
    scores: Float[Tensor, "*lead col"], blocked: Bool[Tensor, "*lead col"]
) -> Float[Tensor, "*lead col"]:
    """Return the log-probability of each column, given those that may not be chosen."""
    return scores.masked_fill(blocked, MEASURED_LOGIT).log_softmax(dim=-1)


def column_distribution(
    scores: Float[Tensor, "*lead col"], blocked: Bool[Tensor, "*lead col"]
) -> torch.distributions.Categorical:
    """Return the distribution that a policy's scores stand for."""
    return torch.distributions.Categorical(
        logits=column_log_probabilities(scores, blocked), validate_args=False
    )


def draw_columns(
    log_probabilities: Float[Tensor, "batch col"], uniforms: Float[Tensor, "batch draw"]
) -> Int[Tensor, "batch draw"]:
    """Draw columns with replacement by inverting the distribution function.

    One uniform number in [0, 1) decides one draw, wherever it is computed. The sums are taken in
    double precision, so that a column of probability zero is never drawn.
    """
    cumulative = log_probabilities.double().exp().cumsum(dim=-1)
    return torch.searchsorted(cumulative, uniforms.double() * cumulative[:, -1:], right=True)


class Drawn(NamedTuple):
    """What was drawn for each state, and from which distribution."""

    blocked: Bool[Tensor, "state col"]
    columns: Int[Tensor, "state draw"]
    log_probs: Float[Tensor, "state draw"]


def draw_unmeasured(
    scores: Float[Tensor, "state col"],
    mask: Bool[Tensor, "state col"],
    selectable: Bool[Tensor, "slice col"],
    owner: Int[Tensor, " state"],
    uniforms: Float[Tensor, "state draw"],
) -> Drawn:
    """Draw columns that are not measured and inside the matrix, on CUDA in one kernel.

    Args:
        scores: logits of the columns.
        mask: the columns measured already.
        selectable: the columns inside each slice's matrix.
        owner: the slice of each state.
        uniforms: decide the draws.
    """
    if scores.is_cuda:
        return Drawn(*choose(scores, mask, selectable, owner, uniforms))
    blocked = mask | ~selectable[owner]
    log_probabilities = column_log_probabilities(scores.float(), blocked)
    columns = draw_columns(log_probabilities, uniforms)
    return Drawn(blocked, columns, log_probabilities.gather(-1, columns))


def best_columns(
    scores: Float[Tensor, "*lead col"], blocked: Bool[Tensor, "*lead col"]
) -> Int[Tensor, "*lead"]:
    """Return the column with the highest score among those left; ties go to the lowest column."""
    # CUDA's argmax promises no order among equals, so the tie is broken by hand.
    masked = scores.masked_fill(blocked, -torch.inf)
    is_best = (masked == masked.amax(dim=-1, keepdim=True)) & ~blocked
    n_cols = scores.shape[-1]
    columns = torch.arange(n_cols, device=scores.device)
    return torch.where(is_best, columns, n_cols).amin(dim=-1).clamp(max=n_cols - 1)


def choose_columns(
    policy: Policy,
    scores: Float[Tensor, "batch col"],
    blocked: Bool[Tensor, "batch col"],
    uniforms: Float[Tensor, " batch"] | None,
) -> Int[Tensor, " batch"]:
    """Choose one column per image: drawn with `uniforms`, or the best where they are None."""
    if uniforms is None or not policy.is_stochastic:
        return best_columns(scores, blocked)
    log_probabilities = column_log_probabilities(scores, blocked)
    return draw_columns(log_probabilities, uniforms[:, None])[:, 0]
