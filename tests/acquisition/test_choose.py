"""Choices respect what is blocked, follow the distribution, and depend on nothing else."""

import math

import pytest
import torch

from kscout.acquisition.choose import (
    best_columns,
    choose_columns,
    column_log_probabilities,
    draw_columns,
    draw_unmeasured,
    draws_columns,
)
from kscout.core import Policy
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import CenterOut
from kscout.policies.random import LearnedDensity, Random, VariableDensity

N_BATCH, N_COLS = 4, 9


def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(N_BATCH, N_COLS, generator=generator)
    blocked = torch.rand(N_BATCH, N_COLS, generator=generator) < 0.6
    blocked[:, int(torch.randint(N_COLS, (), generator=generator))] = False
    return scores, blocked


def test_probabilities_are_a_softmax_over_what_is_left() -> None:
    scores, blocked = example(0)
    found = column_log_probabilities(scores, blocked).exp()
    for row in range(N_BATCH):
        left = [c for c in range(N_COLS) if not blocked[row, c]]
        total = math.fsum(math.exp(float(scores[row, c])) for c in left)
        expected = [
            math.exp(float(scores[row, c])) / total if c in left else 0.0 for c in range(N_COLS)
        ]
        assert found[row].tolist() == pytest.approx(expected, rel=1e-5)
    assert (found[blocked] == 0).all(), "not merely small"


def test_no_number_draws_a_blocked_column(generator: torch.Generator) -> None:
    # With the smallest and the largest numbers below 1.
    edges = torch.tensor([0.0, 1e-45, 1e-30, 1 - 2**-24])
    uniforms = torch.cat([edges, torch.rand(96, generator=generator)]).expand(N_BATCH, -1)
    for seed in range(50):
        scores, blocked = example(seed)
        drawn = draw_columns(column_log_probabilities(scores, blocked), uniforms)
        assert not blocked.gather(-1, drawn).any()


def test_draws_follow_the_distribution() -> None:
    scores, blocked = example(1)
    n_draws = 20_000
    grid = ((torch.arange(n_draws) + 0.5) / n_draws).expand(N_BATCH, -1)
    drawn = draw_columns(column_log_probabilities(scores, blocked), grid)
    counts = torch.nn.functional.one_hot(drawn, N_COLS).sum(dim=1) / n_draws
    expected = scores.masked_fill(blocked, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(counts, expected, atol=2 / n_draws, rtol=0)


def test_best_of_equals_is_the_lowest_free_column() -> None:
    scores = torch.tensor([[1.0, 5.0, 5.0, 0.0], [7.0, 2.0, 2.0, 2.0]])
    blocked = torch.tensor([[False, False, False, False], [True, True, False, False]])
    assert best_columns(scores, blocked).tolist() == [1, 2]


def test_a_deterministic_policy_ignores_the_draw() -> None:
    scores, blocked = example(2)
    policy = CenterOut(n_cols=N_COLS)
    expected = best_columns(scores, blocked)
    for uniforms in (None, torch.zeros(N_BATCH), torch.full((N_BATCH,), 0.999)):
        assert torch.equal(choose_columns(policy, scores, blocked, uniforms), expected)


def test_a_stochastic_policy_draws_where_numbers_are_given_and_takes_the_best_where_not() -> None:
    scores, blocked = example(3)
    uniforms = torch.tensor([0.0, 0.3, 0.6, 0.999])
    found = choose_columns(Random(), scores, blocked, uniforms)
    for row in range(N_BATCH):
        cumulative = scores[row].masked_fill(blocked[row], -torch.inf).softmax(0).cumsum(0)
        assert int(found[row]) == int((cumulative <= uniforms[row]).sum())
    best = choose_columns(Random(), scores, blocked, None)
    assert torch.equal(best, best_columns(scores, blocked))


def test_draws_stay_inside_the_matrix_of_the_own_slice() -> None:
    scores, mask = example(4)
    owner = torch.tensor([1, 0, 1, 0])
    selectable = torch.ones(2, N_COLS, dtype=torch.bool)
    selectable[0, :4], selectable[1, 5:] = False, False
    mask[:, 4] = False
    uniforms = (torch.arange(50) / 50).expand(N_BATCH, -1)
    drawn = draw_unmeasured(scores, mask, selectable, owner, uniforms)
    for row in range(N_BATCH):
        free = {c for c in range(N_COLS) if not mask[row, c] and selectable[owner[row], c]}
        assert set(drawn.columns[row].tolist()) <= free
        assert set(drawn.blocked[row].nonzero()[:, 0].tolist()) == set(range(N_COLS)) - free
    expected = column_log_probabilities(scores, drawn.blocked).gather(-1, drawn.columns)
    assert torch.equal(drawn.log_probs, expected)


@pytest.mark.parametrize(
    ("policy", "is_best", "as_trained"),
    [
        (Random(), True, True),
        (VariableDensity(n_cols=N_COLS), True, True),
        (CenterOut(n_cols=N_COLS), False, False),
        (LearnedDensity(n_cols=N_COLS), False, True),
        (ConvPolicy(n_cols=16, n_channels=2, n_hidden=5), False, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Policy) else str(value),
)
def test_random_columns_are_random_whatever_is_asked_of_trained_policies(
    policy: Policy, is_best: bool, as_trained: bool
) -> None:
    assert draws_columns(policy, is_argmax=True) is is_best
    assert draws_columns(policy, is_argmax=False) is as_trained
