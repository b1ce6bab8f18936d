"""Distributions over unmeasured columns from scores, and the choice of columns."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.core import Policy
from kscout.errors import ConfigError
from kscout.kernels.acquisition_step import choose
from kscout.kernels.registry import Request, serving

MEASURED_LOGIT = -1e7
"""Logit of a column that may not be chosen; its probability is exactly zero in float32."""


def column_log_probabilities(
    scores: Float[Tensor, "*lead col"], blocked: Bool[Tensor, "*lead col"]
) -> Float[Tensor, "*lead col"]:
    """Return the log-softmax of the scores over the columns that are not blocked.

    Blocked columns get the logit `MEASURED_LOGIT`, hence probability zero.
    """
    return scores.masked_fill(blocked, MEASURED_LOGIT).log_softmax(dim=-1)


def draw_columns(
    log_probabilities: Float[Tensor, "batch col"], uniforms: Float[Tensor, "batch draw"]
) -> Int[Tensor, "batch draw"]:
    """Draw columns with replacement by inverting the distribution function.

    One uniform number in [0, 1) determines one draw, on every device. The sums use double
    precision, so a column of probability zero is never drawn.
    """
    cumulative = log_probabilities.double().exp().cumsum(dim=-1)
    return torch.searchsorted(cumulative, uniforms.double() * cumulative[:, -1:], right=True)


class Drawn(NamedTuple):
    """Columns drawn for each state, and their log-probabilities."""

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
    """Draw columns that are not measured and inside the matrix."""
    if serving("draw", Request(scores.device, n_cols=scores.shape[1])) == "cuda":
        return Drawn(*choose(scores, mask, selectable, owner, uniforms))
    blocked = mask | ~selectable[owner]
    log_probabilities = column_log_probabilities(scores.float(), blocked)
    columns = _or_blocked(draw_columns(log_probabilities, uniforms), blocked)
    if scores.device.type == "cpu":
        # On other devices the check would synchronize, which no step does.
        check_chosen(blocked.gather(-1, columns).any(), "the policy")
    return Drawn(blocked, columns, log_probabilities.gather(-1, columns))


def best_columns(
    scores: Float[Tensor, "*lead col"], blocked: Bool[Tensor, "*lead col"]
) -> Int[Tensor, "*lead"]:
    """Return the unblocked column with the highest score; ties go to the lowest index.

    If a score is NaN, a blocked column is returned.
    """
    # argmax on CUDA does not specify the order of ties, so ties are resolved here.
    masked = scores.masked_fill(blocked, -torch.inf)
    is_best = (masked == masked.amax(dim=-1, keepdim=True)) & ~blocked
    n_cols = scores.shape[-1]
    columns = torch.arange(n_cols, device=scores.device)
    best = torch.where(is_best, columns, n_cols).amin(dim=-1, keepdim=True)
    return _or_blocked(best, blocked)[..., 0]


def _or_blocked(
    columns: Int[Tensor, "*lead draw"], blocked: Bool[Tensor, "*lead col"]
) -> Int[Tensor, "*lead draw"]:
    """Replace an index after the last column, which means no column, by a blocked column.

    `check_chosen` then detects it; an index out of range would fail on the device.
    """
    first = blocked.to(torch.int8).argmax(dim=-1, keepdim=True)
    return torch.where(columns < blocked.shape[-1], columns, first)


def check_chosen(is_any_blocked: Bool[Tensor, ""], whose: str) -> None:
    """Raise an error if a blocked column was chosen, which would silently corrupt the image."""
    if is_any_blocked:
        raise ConfigError(
            f"{whose} left no column to choose: its scores are NaN, infinite or below "
            f"{MEASURED_LOGIT:.0e}; return finite scores for all columns, and lower the learning "
            "rate if it was training"
        )


def is_any_blocked(
    columns: Int[Tensor, "state draw"], blocked: Bool[Tensor, "state col"]
) -> Bool[Tensor, ""]:
    """Return whether some column is blocked, or occurs twice in a state; negative ones are none."""
    n_cols = blocked.shape[1]
    if columns.shape[1] == 1:
        return (blocked.gather(-1, columns.clamp(min=0)) & (columns >= 0)).any()
    times = torch.zeros(len(columns), n_cols + 1, dtype=torch.int32, device=columns.device)
    # Negative columns are counted in an extra entry, which is removed.
    places = torch.where(columns < 0, n_cols, columns)
    times = times.scatter_add(-1, places, torch.ones_like(places, dtype=times.dtype))[:, :-1]
    return (times > (~blocked).int()).any()


def has_weights(policy: Policy) -> bool:
    """Return whether a policy has trainable weights."""
    return any(True for _ in policy.parameters())


def is_outside(policy: Policy) -> bool:
    """Return whether the class of a policy is not one of kscout."""
    return not type(policy).__module__.startswith("kscout.")


def draws_columns(policy: Policy, *, is_argmax: bool) -> bool:
    """Return whether columns are sampled from the scores of a policy instead of maximizing them.

    A policy samples if it was trained with sampled columns. A stochastic policy of kscout without
    weights, such as `random`, always samples.

    Args:
        policy: the policy itself, not a view, which may store weights elsewhere.
        is_argmax: take the best columns of policies with weights, and of classes of your own.
    """
    return policy.is_stochastic and not (is_argmax and (has_weights(policy) or is_outside(policy)))


def choose_columns(
    policy: Policy,
    scores: Float[Tensor, "batch col"],
    blocked: Bool[Tensor, "batch col"],
    uniforms: Float[Tensor, " batch"] | None,
) -> Int[Tensor, " batch"]:
    """Choose one column per image: drawn with `uniforms`, or the best one if they are None.

    If the scores allow no choice, a blocked column is returned, which `check_chosen` rejects.
    """
    if uniforms is None or not policy.is_stochastic:
        return best_columns(scores, blocked)
    log_probabilities = column_log_probabilities(scores, blocked)
    return _or_blocked(draw_columns(log_probabilities, uniforms[:, None]), blocked)[:, 0]


def choose_several(
    policy: Policy,
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    uniforms: Float[Tensor, "state draw"] | None,
    n_columns: int,
) -> Int[Tensor, "state draw"]:
    """Choose several columns from the same scores without replacement.

    The columns are the best ones in descending order, or drawn with `uniforms`. In states without
    an unblocked column they contain a blocked or repeated one (`is_any_blocked`).
    """
    columns: list[Int[Tensor, "state 1"]] = []
    for draw in range(n_columns):
        own = None if uniforms is None else uniforms[:, draw]
        if columns:
            blocked = blocked.scatter(-1, columns[-1], True)
        columns.append(choose_columns(policy, scores, blocked, own)[:, None])
    return torch.cat(columns, dim=-1)
