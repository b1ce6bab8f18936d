"""Unexplored columns: counted by hand, and found where a policy rules out what is best."""

from dataclasses import replace
from typing import final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition.plan import Plan
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.evaluation.analyses.unexplored import (
    Tally,
    tally_choices,
    tally_policy,
    tally_states,
    unexplored_rows,
)
from kscout.metrics import ssim
from kscout.physics.fourier import ifft2c
from kscout.physics.sampling import center_mask
from kscout.policies import build
from kscout.policies.column import ColumnPolicy
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled

PLAN = Plan(start=3, horizon=1, n_trajectories=1, batch_size=3)


@final
class Avoids(Policy):
    """Draws any column but one and its mirror image, which it all but rules out."""

    def __init__(self, column: int) -> None:
        super().__init__()
        self.column = column

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        scores = torch.zeros(seen.mask.shape)
        scores[:, [self.column, 12 - self.column]] = -30
        return scores


def test_three_states_by_hand() -> None:
    out = -torch.inf
    gains = torch.tensor([[0.1, 0.4, 0.2, out], [0.3, 0.1, out, 0.2], [out, 0.5, 0.1, 0.1]])
    probabilities = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.5, 0.5, 0, 0], [0, 0.005, 0.995, 0]])
    found = unexplored_rows({"some": tally_states(gains, probabilities, rare=0.01)})
    by_column = {row.column: row for row in found}
    assert list(by_column) == ["any", 1, 0]
    assert by_column["any"].best == pytest.approx(1)
    assert by_column["any"].unexplored == by_column[1].unexplored == pytest.approx(2 / 3)
    assert by_column[1].gain == pytest.approx((0.4 + 0.5) / 2)
    expected = (0.4 - 0.15) + (0.5 - 0.005 * 0.5 - 0.995 * 0.1)
    assert by_column[1].forgone == pytest.approx(expected / 2)
    assert (by_column[0].unexplored, by_column[0].gain) == (0, None)


def test_totals_of_all_policies_come_before_columns() -> None:
    gains = torch.tensor([[0.1, 0.4], [0.3, 0.1], [0.3, 0.1]])
    some = tally_states(gains, torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), rare=0.01)
    other = tally_states(gains, torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]), rare=0.01)
    found = [(row.policy, row.column) for row in unexplored_rows({"a": some, "b": other})]
    assert found[:2] == [("a", "any"), ("b", "any")]
    assert found[2:] == [("b", 0), ("a", 1), ("a", 0), ("b", 1)]


def test_of_columns_worth_the_same_drawing_one_is_enough() -> None:
    gains = torch.tensor([[0.1, 0.4, 0.4 - 1e-8, 0.0]])
    for other, n_unexplored in ((0.9, 0), (0.0, 1)):
        probabilities = torch.tensor([[1 - other, 0, other, 0]])
        found = tally_states(gains, probabilities, rare=0.01)
        assert found.n_best.tolist() == [0, 1, 0, 0]
        assert found.n_unexplored.tolist() == [0, n_unexplored, 0, 0]


def _best_columns(slices: SliceSet) -> list[int]:
    """Try every column of every slice by a transform of its own; of mirrored ones the first."""
    start, found = center_mask(slices.n_cols, 3), []
    whole = slices.batch(torch.arange(len(slices)))
    for number in range(len(slices)):
        scores = torch.full((slices.n_cols,), -torch.inf)
        for column in (~start).nonzero()[:, 0].tolist():
            mask = start.clone()
            mask[column] = True
            image = ifft2c(whole.kspace[number, 0] * mask).abs()
            image = (image - image.mean()) / (image.std() + 1e-11)
            image = image.clamp(-6, 6) * whole.target_std[number] + whole.target_mean[number]
            scores[column] = ssim(
                image[None], whole.target[number][None], data_range=whole.data_range[number][None]
            )
        found.append(int((scores >= scores.max() - 1e-6).nonzero()[0, 0]))
    return found


def test_a_column_that_is_ruled_out_is_unexplored_where_it_is_best(test_slices: SliceSet) -> None:
    best = _best_columns(test_slices)
    column = max(best, key=best.count)
    plan = replace(PLAN, protocol="paper")
    tally = tally_policy(Avoids(column), test_slices, ZeroFilled(), plan, rare=1e-4)
    assert tally.n_states == len(test_slices)
    assert tally.n_best.tolist() == [best.count(x) for x in range(test_slices.n_cols)]
    assert tally.n_unexplored.sum() == tally.n_unexplored[column] == best.count(column)


def test_nothing_is_unexplored_by_a_policy_that_tries_everything(test_slices: SliceSet) -> None:
    plan = Plan(start=3, horizon=4, n_trajectories=1, batch_size=3)
    tally = tally_policy(Random(), test_slices, ZeroFilled(), plan, rare=1e-4)
    assert tally.n_states == 4 * len(test_slices)
    assert tally.n_best.sum() == tally.n_states and not tally.n_unexplored.any()


def test_a_column_that_a_deterministic_policy_never_takes_is_unexplored() -> None:
    out = -torch.inf
    gains = torch.tensor([[0.1, 0.4, 0.2, 0.0], [0.3, 0.1, out, 0.2], [0.1, 0.5, 0.2, 0.3]])
    found = tally_choices(gains, torch.tensor([2, 0, 3]), rare=1e-4)
    assert found.n_best.tolist() == [1, 2, 0, 0] and found.n_unexplored.tolist() == [0, 2, 0, 0]
    assert found.gain[1] == pytest.approx(0.4 + 0.5)
    assert found.forgone[1] == pytest.approx((0.4 - 0.2) + (0.5 - 0.3))
    # Taken once, in another state, it was seen; column 2 could be taken in two states alone.
    assert not tally_choices(gains, torch.tensor([1, 0, 3]), rare=1e-4).n_unexplored.any()
    assert tally_choices(gains, torch.tensor([1, 0, 3]), rare=0.4).n_unexplored.tolist()[1] == 2
    best = torch.tensor([[0.0, 0.1, 0.5, out], [0.0, 0.5, 0.1, 0.2], [0.0, 0.1, 0.5, out]])
    assert not tally_choices(best, torch.tensor([2, 1, 0]), rare=0.3).n_unexplored.any()


def test_a_policy_that_takes_the_best_leaves_nothing_unexplored(test_slices: SliceSet) -> None:
    plan = Plan(start=3, horizon=2, n_trajectories=1, batch_size=3)

    def tally(policy: Policy) -> Tally:
        # What dense gains train takes its best column.
        policy.is_stochastic = False
        return tally_policy(policy, test_slices, ZeroFilled(), plan, rare=1e-4)

    assert not tally(build("oracle", n_cols=13, n_initial=3, horizon=2)).n_unexplored.any()
    # Before it has learned, the column network takes the first two columns, whatever is best.
    small = {"width": 8, "n_heads": 2, "channels": [8], "image_channels": [8], "n_layers": 1}
    found = tally(ColumnPolicy(n_cols=13, horizon=2, n_initial=3, **small))
    taken = [0, 1]
    assert found.n_states == 2 * len(test_slices)
    never = found.n_best.clone()
    never[taken] = 0
    assert torch.equal(found.n_unexplored, never) and never.any()
