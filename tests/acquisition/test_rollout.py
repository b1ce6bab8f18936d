"""Trajectories add up: masks only grow, draws are keyed, oracles are greedy."""

import math
from typing import Any, final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition.choose import (
    best_columns,
    choose_columns,
    column_log_probabilities,
    draw_columns,
    draw_unmeasured,
    draws_columns,
)
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Trajectory, action_uniforms, rollout
from kscout.acquisition.plan import Plan
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.metrics import nmse, psnr, ssim
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import CenterOut, FixedOrder
from kscout.policies.oracle import Oracle
from kscout.policies.random import LearnedDensity, Random, VariableDensity
from kscout.reconstruction.unet import UNet

N_SLICES, N_ROWS, N_COLS, N_INITIAL, HORIZON, N_TRAJECTORIES = 5, 12, 16, 3, 6, 2


@pytest.fixture
def slices(generator: torch.Generator) -> SliceSet:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a", "a", "b", "b", "b"])


def run(slices: SliceSet, policy: Policy, rows: list[int], **settings: Any) -> Trajectory:
    torch.manual_seed(0)
    unet = UNet(n_channels=2, n_pools=1).eval()
    simulator = Simulator(slices.batch(torch.tensor(rows)), unet)
    names = ("uniforms", "replay", "keep_images", "keep_probabilities")
    given = {name: settings.pop(name) for name in names if name in settings}
    plan = Plan(**{"start": N_INITIAL, "horizon": HORIZON, **settings})
    return rollout(policy, simulator, plan, **given)


def draws(seed: int = 0) -> torch.Tensor:
    return action_uniforms(N_SLICES, N_TRAJECTORIES, HORIZON, seed)


def conv_policy() -> ConvPolicy:
    torch.manual_seed(1)
    return ConvPolicy(n_cols=N_COLS, n_rows=N_ROWS, n_channels=2, n_hidden=5)


def test_batches_change_neither_draws_nor_scores(slices: SliceSet) -> None:
    uniforms = draws()
    whole = run(slices, conv_policy(), list(range(N_SLICES)), uniforms=uniforms)
    parts = [
        run(slices, conv_policy(), rows, uniforms=uniforms[rows]) for rows in ([0, 1, 2, 3], [4])
    ]
    assert torch.equal(torch.cat([part.columns for part in parts]), whole.columns)
    for name in ("ssim", "psnr", "nmse"):
        together = torch.cat([getattr(part, name) for part in parts])
        torch.testing.assert_close(together, getattr(whole, name), atol=1e-4, rtol=1e-5)


def test_the_seed_decides_the_draws(slices: SliceSet) -> None:
    first, again, other = (
        run(slices, Random(), [0, 1, 2, 3, 4], uniforms=draws(seed)).columns for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first[:, 0], first[:, 1]), "trajectories of a slice differ"


def test_metrics_are_those_of_the_kept_images(slices: SliceSet) -> None:
    found = run(slices, Random(), [1, 3], uniforms=draws()[:2], keep_images=True)
    assert found.images is not None
    assert found.images.shape == (HORIZON + 1, 2, N_TRAJECTORIES, N_ROWS, N_COLS)
    batch = slices.batch(torch.tensor([1, 3]))
    for moment in (0, HORIZON):
        for trajectory in range(N_TRAJECTORIES):
            image = found.images[moment, :, trajectory]
            expected = {
                "ssim": ssim(image, batch.target, data_range=batch.data_range),
                "psnr": psnr(image, batch.target, data_range=batch.data_range),
                "nmse": nmse(image, batch.target),
            }
            for name, value in expected.items():
                torch.testing.assert_close(getattr(found, name)[:, trajectory, moment], value)


def test_a_replay_measures_what_it_is_given(slices: SliceSet) -> None:
    columns = torch.tensor([[[0, 15, 2], [3, 1, 12]]])
    found = run(slices, Random(), [2], horizon=3, replay=columns)
    assert torch.equal(found.columns, columns)
    order = FixedOrder(n_cols=N_COLS, order=[3, 1, 12])
    alone, start = (run(slices, order, [2], horizon=n) for n in (3, 0))
    torch.testing.assert_close(alone.ssim[:, 0], found.ssim[:, 1], atol=1e-6, rtol=0)
    assert start.columns.shape == (1, 1, 0) and start.ssim.shape == (1, 1, 1)


def test_the_oracle_takes_the_best_column_at_each_step(slices: SliceSet) -> None:
    found = run(slices, Oracle(), [0, 4], horizon=2)
    for row, at in enumerate([0, 4]):
        first = int(found.columns[row, 0, 0])
        left = [c for c in range(N_COLS) if not 7 <= c < 10]
        for taken, step in (([], 0), ([first], 1)):
            tried = [[*taken, c] for c in left if c not in taken]
            replay = torch.tensor(tried)[None]
            scores = run(slices, Random(), [at], horizon=step + 1, replay=replay).ssim[0, :, -1]
            best = float(found.ssim[row, 0, step + 1])
            assert best == pytest.approx(float(scores.max()), abs=2e-6)


def test_probabilities_are_kept_per_step_and_draw(slices: SliceSet) -> None:
    found = run(slices, conv_policy(), [0, 1, 2], uniforms=draws()[:3], keep_probabilities=True)
    assert found.probabilities is not None
    assert found.probabilities.shape == (HORIZON, 3, N_TRAJECTORIES, N_COLS)
    torch.testing.assert_close(found.probabilities.sum(-1), torch.ones(HORIZON, 3, N_TRAJECTORIES))
    chosen = found.probabilities.permute(1, 2, 0, 3).gather(-1, found.columns[..., None])
    assert (chosen > 0).all()
    later = found.probabilities[-1].gather(-1, found.columns[..., :-1])
    assert (later == 0).all(), "a measured column is never likely again"


@pytest.mark.parametrize("columns", [[0, 8, 1], [0, 1, 0]])
def test_a_replay_that_measures_twice_is_refused(slices: SliceSet, columns: list[int]) -> None:
    replay = torch.tensor([[columns, [0, 1, 2]]])
    with pytest.raises(ConfigError, match="1 of 2 replayed trajectories"):
        run(slices, Random(), [0], horizon=3, replay=replay)


@final
class Broken(Policy):
    """Gives one score to the columns up to some number, another to the rest."""

    def __init__(self, *, low: float, high: float, until: int) -> None:
        super().__init__()
        self.low, self.high, self.until = low, high, until

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        scores = torch.full(seen.mask.shape, self.high)
        scores[:, : self.until] = self.low
        return scores


@pytest.mark.parametrize("is_drawn", [False, True])
@pytest.mark.parametrize(
    ("low", "high"), [(math.nan, 0.0), (math.nan, math.nan), (1.0, -math.inf), (1.0, -1e9)]
)
def test_scores_that_allow_no_choice_are_told(
    slices: SliceSet, low: float, high: float, is_drawn: bool
) -> None:
    policy = Broken(low=low, high=high, until=2)
    if not is_drawn and not math.isnan(low):
        # The best of equals, however low, is still a choice.
        found = run(slices, policy, [0], is_argmax=True)
        assert found.columns.tolist() == [[[0, 1, 2, 3, 4, 5]]]
        return
    uniforms = draws() if is_drawn else None
    # Infinite scores leave a choice while finite ones are left.
    some = run(
        slices, Broken(low=-math.inf, high=0.0, until=2), [*range(N_SLICES)], uniforms=uniforms
    )
    assert some.columns.min() >= 2
    with pytest.raises(ConfigError, match="Broken left no column to choose: its scores are NaN"):
        run(slices, policy, list(range(N_SLICES)), uniforms=uniforms)


def test_a_policy_samples_by_default_if_it_was_trained_with_sampled_columns(
    slices: SliceSet,
) -> None:
    policy, rows = conv_policy(), [2, 0]
    uniforms = action_uniforms(3, 1, HORIZON, 0)[rows]
    sampled = run(slices, policy, rows, uniforms=uniforms).columns
    best = run(slices, policy, rows, is_argmax=True).columns
    assert torch.equal(run(slices, policy, rows).columns, sampled)
    policy.is_stochastic = False
    assert torch.equal(run(slices, policy, rows).columns, best) and not torch.equal(best, sampled)


N_BATCH, CHOOSE_N_COLS = 4, 9


def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(N_BATCH, CHOOSE_N_COLS, generator=generator)
    blocked = torch.rand(N_BATCH, CHOOSE_N_COLS, generator=generator) < 0.6
    blocked[:, int(torch.randint(CHOOSE_N_COLS, (), generator=generator))] = False
    return scores, blocked


def test_probabilities_are_a_softmax_over_what_is_left() -> None:
    scores, blocked = example(0)
    found = column_log_probabilities(scores, blocked).exp()
    for row in range(N_BATCH):
        left = [c for c in range(CHOOSE_N_COLS) if not blocked[row, c]]
        total = math.fsum(math.exp(float(scores[row, c])) for c in left)
        expected = [
            math.exp(float(scores[row, c])) / total if c in left else 0.0
            for c in range(CHOOSE_N_COLS)
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


def test_best_of_equals_is_the_lowest_free_column() -> None:
    scores = torch.tensor([[1.0, 5.0, 5.0, 0.0], [7.0, 2.0, 2.0, 2.0]])
    blocked = torch.tensor([[False, False, False, False], [True, True, False, False]])
    assert best_columns(scores, blocked).tolist() == [1, 2]


def test_a_stochastic_policy_draws_where_numbers_are_given_and_takes_the_best_where_not() -> None:
    scores, blocked = example(3)
    uniforms = torch.tensor([0.0, 0.3, 0.6, 0.999])
    found = choose_columns(Random(), scores, blocked, uniforms)
    for row in range(N_BATCH):
        cumulative = scores[row].masked_fill(blocked[row], -torch.inf).softmax(0).cumsum(0)
        assert int(found[row]) == int((cumulative <= uniforms[row]).sum())
    best = best_columns(scores, blocked)
    assert torch.equal(choose_columns(Random(), scores, blocked, None), best)
    deterministic = CenterOut(n_cols=CHOOSE_N_COLS)
    assert torch.equal(choose_columns(deterministic, scores, blocked, uniforms), best)


def test_draws_stay_inside_the_matrix_of_the_own_slice() -> None:
    scores, mask = example(4)
    owner = torch.tensor([1, 0, 1, 0])
    selectable = torch.ones(2, CHOOSE_N_COLS, dtype=torch.bool)
    selectable[0, :4], selectable[1, 5:] = False, False
    mask[:, 4] = False
    uniforms = (torch.arange(50) / 50).expand(N_BATCH, -1)
    drawn = draw_unmeasured(scores, mask, selectable, owner, uniforms)
    for row in range(N_BATCH):
        free = {c for c in range(CHOOSE_N_COLS) if not mask[row, c] and selectable[owner[row], c]}
        assert set(drawn.columns[row].tolist()) <= free
        assert set(drawn.blocked[row].nonzero()[:, 0].tolist()) == set(range(CHOOSE_N_COLS)) - free
    expected = column_log_probabilities(scores, drawn.blocked).gather(-1, drawn.columns)
    assert torch.equal(drawn.log_probs, expected)


@pytest.mark.parametrize(
    ("policy", "is_best", "as_trained"),
    [
        (Random(), True, True),
        (VariableDensity(n_cols=CHOOSE_N_COLS), True, True),
        (CenterOut(n_cols=CHOOSE_N_COLS), False, False),
        (LearnedDensity(n_cols=CHOOSE_N_COLS), False, True),
        (ConvPolicy(n_cols=16, n_channels=2, n_hidden=5), False, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Policy) else str(value),
)
def test_random_columns_are_random_whatever_is_asked_of_trained_policies(
    policy: Policy, is_best: bool, as_trained: bool
) -> None:
    assert draws_columns(policy, is_argmax=True) is is_best
    assert draws_columns(policy, is_argmax=False) is as_trained
