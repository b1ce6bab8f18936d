"""The page acquires a slice as `rollout` does, and compares a column of the user with others."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from page_backend import make_backend

from kscout.acquisition import Simulator, action_uniforms
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.apps.serve.page.interactive import InteractiveAcquisition, drawn_kspace
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.running.entries import EvaluationEntry, resolve
from kscout.reconstruction.zero_filled import ZeroFilled

N_ROWS, N_COLS, N_INITIAL, HORIZON = 18, 13, 3, 4


@pytest.fixture(scope="module")
def acquisition() -> InteractiveAcquisition:
    noise = torch.rand(1, N_ROWS, N_COLS, generator=torch.Generator().manual_seed(0))
    slices = SliceSet.from_images(noise.cumsum(dim=-1), ["a"])
    simulator = Simulator(slices.batch(torch.tensor([0])), ZeroFilled())
    return InteractiveAcquisition(simulator, Plan(N_INITIAL, HORIZON))


def entry(name: str) -> EvaluationEntry:
    return resolve(name, (N_ROWS, N_COLS), Plan(N_INITIAL, HORIZON))[0]


@pytest.mark.parametrize("name", ["center-out", "random", "oracle", "conv"])
@pytest.mark.parametrize("is_stochastic", [True, False])
def test_policies_take_the_columns_of_a_rollout_as_they_were_trained(
    acquisition: InteractiveAcquisition, name: str, is_stochastic: bool
) -> None:
    one = replace(entry(name), is_learned=True)
    if name == "conv":
        one.policy.is_stochastic = is_stochastic
    found = acquisition.run(one)
    draws = action_uniforms(1, 1, HORIZON, one.draw_seed)
    plan = Plan(N_INITIAL, HORIZON)
    done = rollout(one.policy, acquisition.simulator, plan, uniforms=draws, keep_images=True)
    assert found.columns == tuple(done.columns[0, 0].tolist())
    assert found.ssim.tolist() == done.ssim[0, 0].tolist()
    assert done.images is not None and (found.images == done.images[:, 0, 0].numpy()).all()
    assert found.is_oracle == (name == "oracle")


def test_a_service_with_argmax_shows_the_columns_of_its_sessions(
    acquisition: InteractiveAcquisition,
) -> None:
    one = replace(entry("conv"), is_learned=True)
    plan = Plan(N_INITIAL, HORIZON, is_argmax=True)
    best = rollout(one.policy, acquisition.simulator, plan)
    plan = Plan(N_INITIAL, HORIZON, is_argmax=make_backend(argmax=True).is_argmax)
    found = InteractiveAcquisition(acquisition.simulator, plan).run(one)
    assert found.columns == tuple(best.columns[0, 0].tolist()) != acquisition.run(one).columns


def test_the_best_column_left_is_rated_highest_and_measured_ones_not_at_all(
    acquisition: InteractiveAcquisition,
) -> None:
    for name in ("center-out", "oracle"):
        found = acquisition.run(entry(name))
        assert found.ratings is not None and found.ratings.shape == (HORIZON + 1, N_COLS)
        known = list(acquisition.start_columns)
        for row, column in zip(found.ratings, found.columns, strict=False):
            assert row[column] == row.max() == 255 and not row[known].any()
            known.append(column)
        assert not found.ratings[-1].any(), "nobody is asked after the last step"


def test_columns_of_the_user_are_measured_and_the_last_image_stays(
    acquisition: InteractiveAcquisition,
) -> None:
    found = acquisition.replay("you", (0, 12))
    others = acquisition.replay("you", (0, 12, 1))
    assert found.columns == (0, 12) and len(found.images) == HORIZON + 1
    assert (found.images[:3] == others.images[:3]).all()
    assert (found.images[2:] == found.images[2]).all() and found.ssim[2] == found.ssim[-1]


@pytest.mark.parametrize("columns", [(6,), (0, 0), (13,), (-1,), (0, 1, 2, 3, 4)])
def test_columns_that_cannot_be_measured_are_rejected(
    acquisition: InteractiveAcquisition, columns: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match=r"take another|take more steps"):
        acquisition.replay("you", columns)


def test_a_verdict_contains_the_score_of_every_choice(acquisition: InteractiveAcquisition) -> None:
    found = acquisition.compare("you", (1, 11), [entry("center-out")])
    assert [one.name for one in found.turns] == ["you", "center-out", "oracle"]
    before = acquisition.replay("you", (1,))
    assert found.before == pytest.approx(before.ssim[1]) and found.n_left == 13 - 3 - 1
    for turn in found.turns:
        assert turn.ssim == pytest.approx(
            acquisition.replay("x", (1, turn.column)).ssim[2], abs=1e-6
        )
    free = [column for column in range(N_COLS) if column not in (1, *acquisition.start_columns)]
    every = np.array([acquisition.replay("x", (1, column)).ssim[2] for column in free])
    assert found.turns[-1].ssim == pytest.approx(every.max(), abs=1e-6)
    assert found.rank == 1 + (every > every[free.index(11)] + 1e-6).sum()


def test_k_space_is_drawn_brightest_where_it_is_largest(
    acquisition: InteractiveAcquisition,
) -> None:
    drawn = drawn_kspace(acquisition.simulator.batch)
    assert (drawn.min(), drawn.max()) == (0, 1) and drawn[N_ROWS // 2, N_COLS // 2] == 1
