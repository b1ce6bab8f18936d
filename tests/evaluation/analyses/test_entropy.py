"""Entropies: the reference's numbers, known distributions, and streaming."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout.acquisition.plan import Plan
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.average_policy import (
    average_policies_of_results,
    average_policy,
    best_seeds,
    sampled_by_step,
)
from kscout.evaluation.analyses.entropy import (
    entropies,
    entropies_of_parts,
    entropy_rows,
    policy_entropies,
)
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.physics.sampling import center_mask
from kscout.policies.fixed import CenterOut
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled


@pytest.mark.parametrize("step", [None, *range(4)])
def test_entropies_match_the_reference(golden: Any, step: int | None) -> None:
    """Of random distributions, and of a policy at each step."""
    names = ("rnd_marg", "rnd_cond", "rnd_mi") if step is None else ("marg_ent", "cond_ent", "mi")
    probabilities = golden("mi", "rnd_probs" if step is None else f"probs_step{step}")
    found = entropies(probabilities[None])
    for name, value in zip(
        names, (found.marginal, found.conditional, found.mutual_information), strict=True
    ):
        expected = golden("mi", name)
        expected = expected if step is None else expected[step]
        assert value.item() == pytest.approx(expected.item(), abs=1e-6)


def test_uniform_choices_carry_no_information_and_certain_different_ones_only_it() -> None:
    found = entropies(torch.full((2, 3, 5, 11), 1 / 11))
    torch.testing.assert_close(found.marginal, torch.full((2,), math.log(11)).double())
    assert found.mutual_information.abs().max() < 1e-6
    certain = entropies(torch.eye(7).view(1, 7, 1, 7))
    assert certain.marginal.item() == pytest.approx(math.log(7), abs=1e-6)
    assert certain.conditional.item() == pytest.approx(0, abs=1e-6)


def test_streaming_equals_all_at_once(generator: torch.Generator) -> None:
    probabilities = torch.rand(2, 9, 3, 5, generator=generator).softmax(dim=-1)
    found = entropies_of_parts(probabilities.split(4, dim=1))
    whole = entropies(probabilities)
    torch.testing.assert_close(found.marginal, whole.marginal)
    torch.testing.assert_close(found.conditional, whole.conditional)


def _slices(generator: torch.Generator) -> SliceSet:
    return SliceSet.from_images(torch.rand(5, 12, 9, generator=generator), list("aabbb"))


def test_uniform_policy_has_the_entropy_of_what_is_left(generator: torch.Generator) -> None:
    plan = Plan(start=3, horizon=4, n_trajectories=7, batch_size=2)
    found = policy_entropies(Random(), _slices(generator), ZeroFilled(), plan)
    expected = torch.tensor([6.0, 5.0, 4.0, 3.0]).log().double()
    torch.testing.assert_close(found.conditional, expected, atol=1e-6, rtol=0)
    # The masks of later steps differ, so there the average is more even than each.
    assert found.mutual_information[0].abs() < 1e-6
    assert (found.mutual_information[1:] > 0).all()


class _ByBrightness(Policy):
    """Takes columns from the left in dark images, from the right in bright ones."""

    is_stochastic = False
    needs_measurement = True

    def forward(self, seen: Observation) -> torch.Tensor:
        assert seen.mean is not None
        sign = torch.where(seen.mean > 1.5, 1.0, -1.0)
        return sign[:, None] * torch.arange(seen.mask.shape[1])


def test_the_choices_of_a_policy_that_draws_nothing_are_all_information(
    generator: torch.Generator,
) -> None:
    images = (
        torch.rand(5, 12, 9, generator=generator) + torch.tensor([1, 1, 4, 4, 4])[:, None, None]
    )
    slices = SliceSet.from_images(images, list("aabbb"))
    plan = Plan(start=3, horizon=2, n_trajectories=7, batch_size=2)
    same = policy_entropies(CenterOut(n_cols=9), slices, ZeroFilled(), plan)
    assert same.marginal.abs().max() < 1e-6 and same.conditional.abs().max() < 1e-6
    found = policy_entropies(_ByBrightness(), slices, ZeroFilled(), plan)
    expected = -(0.4 * math.log(0.4) + 0.6 * math.log(0.6))
    assert found.mutual_information.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert found.conditional.abs().max() < 1e-6


def test_entropies_of_no_step_are_rejected(generator: torch.Generator) -> None:
    with pytest.raises(ConfigError, match="at least one step"):
        policy_entropies(CenterOut(n_cols=9), _slices(generator), ZeroFilled(), Plan(3, 0))


def test_bands_are_mean_and_std_over_seeds() -> None:
    seeds = [entropies(torch.eye(4).view(1, 4, 1, 4)), entropies(torch.full((1, 2, 1, 4), 0.25))]
    (band,) = entropy_rows("greedy", seeds)
    assert (band.policy, band.step, band.n_seeds) == ("greedy", 1, 2)
    assert band.mutual_information == pytest.approx(math.log(4) / 2, abs=1e-6)
    assert band.mutual_information_std == pytest.approx(math.log(4) / 2**0.5, abs=1e-6)
    assert entropy_rows("greedy", seeds[:1])[0].marginal_std is None


PLAN = Plan(start=3, horizon=4, n_trajectories=1, batch_size=2)


def test_fractions_are_counted_by_step() -> None:
    start = np.array([False, False, True, False, False])
    columns = np.array([[0, 1], [1, 4], [1, 0], [3, 1]])
    found = sampled_by_step(columns, np.tile(start, (4, 1)))
    assert found.tolist() == [[0.25, 0.5, 1.0, 0.25, 0.0], [0.5, 1.0, 1.0, 0.25, 0.25]]


def test_random_policy_samples_all_columns_alike(test_slices: SliceSet) -> None:
    plan = Plan(start=3, horizon=4, n_trajectories=200)
    found = average_policy(Random(), test_slices, ZeroFilled(), plan)
    start = center_mask(13, 3).numpy()
    for step in range(4):
        # By step t each of the 10 free columns has been taken with probability t / 10.
        np.testing.assert_allclose(found.sampled[step, ~start], (step + 1) / 10, atol=0.05)
    assert (found.sampled[:, start] == 1).all()
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(found.probabilities[0, ~start], 0.1, rtol=1e-6)
    assert (found.probabilities[:, start] == 0).all()


def test_deterministic_policy_has_no_probabilities(test_slices: SliceSet) -> None:
    found = average_policy(CenterOut(n_cols=13), test_slices, ZeroFilled(), PLAN)
    assert found.probabilities is None
    assert np.unique(found.sampled).tolist() == [0.0, 1.0]
    assert found.sampled.sum(axis=1).tolist() == [4, 5, 6, 7]


def test_table_gives_the_same_as_the_run(test_slices: SliceSet, tmp_path: Path) -> None:
    setting = EvaluationSetting(n_initial=3, steps=4, trajectories=1, seeds=(4, 9))
    summary = evaluate(("random",), test_slices, ZeroFilled(), setting, out=tmp_path).found
    plan = Plan(start=3, horizon=4, n_trajectories=1, seed=9)
    expected = average_policy(Random(), test_slices, ZeroFilled(), plan)
    found = average_policies_of_results(tmp_path, ["random"], summary, seed=9)["random"]
    np.testing.assert_array_equal(found.sampled, expected.sampled)
    best = average_policies_of_results(tmp_path, ["random"], summary)["random"]
    seed = best_seeds(tmp_path, ["random"])["random"]
    other = average_policies_of_results(tmp_path, ["random"], summary, seed=seed)["random"]
    np.testing.assert_array_equal(best.sampled, other.sampled)
    with pytest.raises(DataError, match="no policy 'greedy'"):
        average_policies_of_results(tmp_path, ["greedy"], summary)
    with pytest.raises(DataError, match="'random' with seed 5"):
        average_policies_of_results(tmp_path, ["random"], summary, seed=5)
