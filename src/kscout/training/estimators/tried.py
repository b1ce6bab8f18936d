"""Columns that are tried at a state, and what a policy learns from their gains."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import column_log_probabilities, draw_columns
from kscout.policies.views import View
from kscout.training.estimators.visited import joined, observation_of, part_of
from kscout.training.replay import Rows

_EXPLORE_BEST, _EXPLORE_ANY = 0.23, 0.07
"""Probabilities that an acquisition continues with one of the columns of highest score instead of
the best, and with any candidate."""
N_AT_ONCE = {"cpu": 16, "cuda": 1024}
"""States of a policy whose gradients are computed together, by kind of device."""
_N_PIXELS = 128 * 128
"""Of the images of these states; fewer states of larger images take as much memory."""


def columns_to_try(
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    uniforms: Float[Tensor, "state draw"],
    n_best: int,
) -> Int[Tensor, "state candidate"]:
    """Return the columns with the highest scores, best first, then some of the others at random.

    Where too few are left, blocked ones stand in, or one is drawn again.

    Args:
        scores: what the policy expects.
        blocked: columns that may not be chosen.
        uniforms: numbers in [0, 1) that decide the draws, which may repeat a column.
        n_best: how many of the best.
    """
    n_best = min(n_best, scores.shape[1])
    best = scores.masked_fill(blocked, -torch.inf).topk(n_best, dim=-1).indices
    rest = column_log_probabilities(torch.zeros_like(scores), blocked.scatter(-1, best, True))
    return torch.cat([best, draw_columns(rest, uniforms)], dim=-1)


def choice_of(
    uniforms: Float[Tensor, "state 2"], is_valid: Bool[Tensor, "state candidate"], n_best: int
) -> Int[Tensor, " state"]:
    """Return which tried column to go on with: the best, another of the best, or any."""
    which, place = uniforms.unbind(dim=-1)
    n_tried = is_valid.shape[1]
    n_best = min(n_best, n_tried)
    other = torch.where(which < _EXPLORE_ANY, place * n_tried, place * n_best).long()
    explores = which < _EXPLORE_ANY + _EXPLORE_BEST
    choice = torch.where(explores, other, torch.zeros_like(other))
    return torch.where(is_valid.gather(-1, choice[:, None])[:, 0], choice, torch.zeros_like(choice))


def dense_loss(
    scores: Float[Tensor, "state candidate"],
    gains: Float[Tensor, "state candidate"],
    is_valid: Bool[Tensor, "state candidate"],
    gain_weight: float,
) -> Float[Tensor, " state"]:
    """Return each state's loss.

    Args:
        scores: of the columns that were tried.
        gains: what they gained, in the units of the scores.
        is_valid: False for columns that do not count.
        gain_weight: w, the weight of the expected gain.
    """
    counts, gains = is_valid.sum(dim=-1), gains.masked_fill(~is_valid, 0.0)
    errors = (scores - gains).square().masked_fill(~is_valid, 0.0).sum(dim=-1) / counts
    chances = scores.masked_fill(~is_valid, -torch.inf).softmax(dim=-1)
    return errors - gain_weight * (chances * gains).sum(dim=-1)


def add_gradients(
    views: Sequence[View], steps: Sequence[Rows], gain_weight: float, n_cols: int
) -> None:
    """Add the gradients of each policy's mean loss over its states, some states at a time.

    A column of a coarser matrix gains more, as it is a larger share of it; losses are those of
    gains and scores in proportion, so that no size outweighs another.

    Args:
        views: of the policies, which share the states in equal parts.
        steps: labelled states.
        gain_weight: as in `dense_loss`.
        n_cols: columns of slices as they are stored.
    """
    for number, view in enumerate(views):
        own, begin = [part_of(rows, number, len(views)) for rows in steps], 0
        n_states = sum(len(rows["mask"]) for rows in own)
        for rows in joined(own, _n_at_once(own[0]["image"])):
            scores = view.recall(observation_of(rows), begin).float().gather(-1, rows["columns"])
            share = rows["mask"].shape[1] / n_cols
            both = (share * scores, share * rows["gains"])
            loss = dense_loss(*both, rows["is_valid"], gain_weight).sum()
            (loss / n_states).backward()
            begin += len(scores)


def _n_at_once(images: Float[Tensor, "state row col"]) -> int:
    n_states = N_AT_ONCE[images.device.type]
    return max(1, min(n_states, n_states * _N_PIXELS // images[0].numel()))
