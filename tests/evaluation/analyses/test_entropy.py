"""Entropies: the reference's numbers, known distributions, and streaming."""

import math
from typing import Any

import pytest
import torch

from kscout.acquisition.plan import Plan
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.analyses.entropy import (
    EntropyAccumulator,
    entropies,
    entropy_rows,
    policy_entropies,
)
from kscout.reconstruction.zero_filled import ZeroFilled


def test_random_distributions_match_the_reference(golden: Any) -> None:
    found = entropies(golden("mi", "rnd_probs")[None])
    for name, value in (
        ("rnd_marg", found.marginal),
        ("rnd_cond", found.conditional),
        ("rnd_mi", found.mutual_information),
    ):
        assert value.item() == pytest.approx(golden("mi", name).item(), abs=1e-6)


@pytest.mark.parametrize("step", range(4))
def test_policy_steps_match_the_reference(golden: Any, step: int) -> None:
    found = entropies(golden("mi", f"probs_step{step}")[None])
    assert found.marginal.item() == pytest.approx(golden("mi", "marg_ent")[step].item(), abs=1e-6)
    assert found.conditional.item() == pytest.approx(
        golden("mi", "cond_ent")[step].item(), abs=1e-6
    )
    assert found.mutual_information.item() == pytest.approx(
        golden("mi", "mi")[step].item(), abs=1e-6
    )


def test_certain_and_different_choices_are_all_information() -> None:
    found = entropies(torch.eye(7).view(1, 7, 1, 7))
    assert found.marginal.item() == pytest.approx(math.log(7), abs=1e-6)
    assert found.conditional.item() == pytest.approx(0, abs=1e-6)


def test_the_same_uniform_choice_carries_no_information() -> None:
    found = entropies(torch.full((2, 3, 5, 11), 1 / 11))
    torch.testing.assert_close(found.marginal, torch.full((2,), math.log(11)).double())
    assert found.mutual_information.abs().max() < 1e-6


def test_streaming_equals_all_at_once(generator: torch.Generator) -> None:
    probabilities = torch.rand(2, 9, 3, 5, generator=generator).softmax(dim=-1)
    accumulator = EntropyAccumulator()
    for part in probabilities.split(4, dim=1):
        accumulator.add(part)
    found, whole = accumulator.result(), entropies(probabilities)
    torch.testing.assert_close(found.marginal, whole.marginal)
    torch.testing.assert_close(found.conditional, whole.conditional)


class _Uniform(Policy):
    def forward(self, seen: Observation) -> torch.Tensor:
        return torch.zeros(seen.mask.shape)


class _First(Policy):
    is_stochastic = False

    def forward(self, seen: Observation) -> torch.Tensor:
        return -torch.arange(seen.mask.shape[1]).float().expand(seen.mask.shape)


def _slices(generator: torch.Generator) -> SliceSet:
    return SliceSet.from_images(torch.rand(5, 12, 9, generator=generator), list("aabbb"))


def test_uniform_policy_has_the_entropy_of_what_is_left(generator: torch.Generator) -> None:
    plan = Plan(start=3, horizon=4, n_trajectories=7, batch_size=2)
    found = policy_entropies(_Uniform(), _slices(generator), ZeroFilled(), plan)
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
    same = policy_entropies(_First(), slices, ZeroFilled(), plan)
    assert same.marginal.abs().max() < 1e-6 and same.conditional.abs().max() < 1e-6
    found = policy_entropies(_ByBrightness(), slices, ZeroFilled(), plan)
    expected = -(0.4 * math.log(0.4) + 0.6 * math.log(0.6))
    assert found.mutual_information.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert found.conditional.abs().max() < 1e-6


def test_entropies_of_no_step_are_rejected(generator: torch.Generator) -> None:
    with pytest.raises(ConfigError, match="at least one step"):
        policy_entropies(_First(), _slices(generator), ZeroFilled(), Plan(3, 0))


def test_bands_are_mean_and_std_over_seeds() -> None:
    seeds = [entropies(torch.eye(4).view(1, 4, 1, 4)), entropies(torch.full((1, 2, 1, 4), 0.25))]
    (band,) = entropy_rows("greedy", seeds)
    assert (band.policy, band.step, band.n_seeds) == ("greedy", 1, 2)
    assert band.mutual_information == pytest.approx(math.log(4) / 2, abs=1e-6)
    assert band.mutual_information_std == pytest.approx(math.log(4) / 2**0.5, abs=1e-6)
    assert entropy_rows("greedy", seeds[:1])[0].marginal_std is None
