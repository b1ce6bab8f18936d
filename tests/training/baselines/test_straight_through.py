"""Gradients through draws agree with computations that know no autograd."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from joint_runs import joint_config
from torch import Tensor

from kscout.core import Observation, Policy, SliceBatch
from kscout.data.slices import SliceSet
from kscout.names import SAMPLERS
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.sampling import center_mask
from kscout.policies import POLICIES
from kscout.policies.random import LearnedDensity
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.baselines.straight_through import (
    Scorer,
    drawn_through,
    masks_drawn_blindly,
    scores_on_the_way,
)
from kscout.training.joint.sampler import Material, acquire, policy_config

N_SLICES, N_ROWS, N_COLS, HORIZON = 3, 8, 10, 3
START = center_mask(N_COLS, 2).expand(N_SLICES, -1)
TRAINING = joint_config("straight-through").training


class Looks(Policy):
    """Scores columns by what it sees, so that its gradients depend on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, N_COLS, dtype=torch.float64))

    def forward(self, seen: Observation) -> Tensor:
        self.told.append(seen.n_left)
        return seen.image.square().mean(dim=1) * self.weight


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator, dtype=torch.float64)
    found = SliceSet.from_images(images, ["a"] * N_SLICES).batch(torch.arange(N_SLICES))
    assert found.kspace.dtype == torch.complex128
    return found


def gumbel(*shape: int, generator: torch.Generator) -> Tensor:
    return -(-torch.rand(*shape, generator=generator, dtype=torch.float64).log()).log()


@pytest.fixture
def noise(generator: torch.Generator) -> Tensor:
    return gumbel(N_SLICES, HORIZON, N_COLS, generator=generator)


def test_a_draw_is_exact_and_its_gradient_that_of_the_softmax(generator: torch.Generator) -> None:
    scores = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    blocked = torch.rand(5, 7, generator=generator) < 0.4
    noise, weights = gumbel(5, 7, generator=generator), torch.rand(5, 7, generator=generator)
    drawn = drawn_through(scores, blocked, noise)
    assert set(drawn.detach().unique().tolist()) == {0.0, 1.0}
    (drawn * weights).sum().backward()
    for row in range(5):
        free = np.flatnonzero(~blocked[row].numpy())
        noisy = (scores + noise)[row].detach().numpy()[free]
        assert drawn[row].argmax() == free[noisy.argmax()]
        chances = np.exp(noisy)
        chances /= chances.sum()
        own = weights[row].numpy()[free]
        expected = np.zeros(7)
        expected[free] = chances * (own - chances @ own)
        np.testing.assert_allclose(scores.grad[row].numpy(), expected, atol=1e-12)


def by_differences(values: Callable[[Tensor], Tensor], mask: Tensor) -> np.ndarray:
    """Return how values of each slice change with each entry of its mask, by central differences.

    Images are un-normalized in 32 bit, so that steps must not be too small.
    """
    found, step = [], 2e-3
    for column in range(mask.shape[1]):
        ends = []
        for sign in (1, -1):
            moved = mask.clone()
            moved[:, column] += sign * step
            ends.append(values(moved).detach().numpy())
        found.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(found, axis=-1)


def expected_gradients(
    masks: Tensor, noisy: Tensor, slopes: list[np.ndarray], sights: list[np.ndarray]
) -> np.ndarray:
    """Return the gradients of summed scores with respect to what a policy says at each step.

    Args:
        masks: of all moments, zeros and ones.
        noisy: what it says of columns, with noise, by slice and step.
        slopes: of the scores of each moment after the start with its mask.
        sights: of what it says at each step with the mask before; zeros where that is given.
    """
    found = np.zeros(noisy.shape)
    for row in range(N_SLICES):
        later = np.zeros(N_COLS)
        for step in reversed(range(HORIZON)):
            later = later + slopes[step][row]
            free = np.flatnonzero(masks[row, step].numpy() == 0)
            chances = np.exp(noisy[row, step].numpy()[free])
            chances /= chances.sum()
            own = later[free]
            found[row, step, free] = chances * (own - chances @ own)
            later = later + found[row, step] @ sights[step][row]
    return found


def test_a_density_learns_by_the_slope_of_scores_with_masks(
    batch: SliceBatch, generator: torch.Generator
) -> None:
    policy = LearnedDensity(n_cols=N_COLS).double()
    torch.nn.init.normal_(policy.logits, generator=generator)
    noise = gumbel(N_SLICES, HORIZON, N_COLS, generator=generator)
    masks = masks_drawn_blindly(policy, START, batch.selectable, noise)
    assert masks.sum(dim=-1).tolist() == [[2, 3, 4, 5]] * N_SLICES
    scorer, moment = Scorer(batch, ZeroFilled(), START, TRAINING), torch.tensor([3, 1, 2])
    scorer.reconstruct(masks[torch.arange(N_SLICES), moment])[2].sum().backward()
    fixed, counted = masks.detach(), np.eye(HORIZON)[moment.numpy() - 1]

    def score(mask: Tensor) -> Tensor:
        return scorer.reconstruct(mask)[2]

    slopes = [by_differences(score, fixed[:, at + 1]) for at in range(HORIZON)]
    slopes = [slope * counted[:, [at]] for at, slope in enumerate(slopes)]
    noisy = policy.logits.detach() + noise
    blind = [np.zeros((N_SLICES, N_COLS, N_COLS))] * HORIZON
    expected = expected_gradients(fixed, noisy, slopes, blind).sum(axis=(0, 1))
    assert np.abs(expected).max() > 0.03
    np.testing.assert_allclose(policy.logits.grad.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_a_policy_that_looks_is_scored_by_all_images_that_follow(
    protocol: str, batch: SliceBatch, noise: Tensor
) -> None:
    policy = Looks()
    training = joint_config("straight-through", protocol=protocol).training
    scorer = Scorer(batch, ZeroFilled(), START, training)
    scores, masks = scores_on_the_way(policy, scorer, START, noise)
    assert masks.sum(dim=-1).tolist() == [[2, 3, 4, 5]] * N_SLICES
    scores.sum().backward()
    fixed, weight = masks.detach(), policy.weight.detach()

    def features(mask: Tensor) -> Tensor:
        return scorer.reconstruct(mask)[1].image.square().mean(dim=1)

    def score(mask: Tensor) -> Tensor:
        return scorer.reconstruct(mask)[2]

    with torch.no_grad():
        seen = torch.stack([features(fixed[:, step]) for step in range(HORIZON)], dim=1)
        slopes = [by_differences(score, fixed[:, at + 1]) for at in range(3)]
        sights = [
            by_differences(lambda x: features(x) * weight, fixed[:, step])
            for step in range(HORIZON)
        ]
    by_score = expected_gradients(fixed, seen * weight + noise, slopes, sights)
    expected = (by_score * seen.numpy()).sum(axis=(0, 1))
    assert np.abs(expected).max() > 0.03
    np.testing.assert_allclose(policy.weight.grad.numpy(), expected, atol=2e-4)
    # What goes through images is no rounding.
    others = expected_gradients(fixed, seen * weight + noise, slopes, [0 * x for x in sights])
    change = np.abs((others * seen.numpy()).sum(axis=(0, 1)) - expected).max()
    assert change > 0.005


def test_policies_are_told_how_many_columns_may_follow(batch: SliceBatch, noise: Tensor) -> None:
    policy, config = Looks(), joint_config("straight-through", horizon=HORIZON)
    scorer = Scorer(batch, ZeroFilled(), START, TRAINING)
    scores_on_the_way(policy, scorer, START, noise)
    acquire(policy, batch, config, torch.rand(N_SLICES, HORIZON), ZeroFilled())
    assert policy.told == [3, 2, 1] * 2


def test_while_it_learns_nothing_unmeasured_changes_a_draw(
    batch: SliceBatch, noise: Tensor
) -> None:

    def masks(kspace: Tensor) -> Tensor:
        seen = SliceBatch(kspace, *batch.tensors()[1:])
        scorer = Scorer(seen, ZeroFilled(), START, TRAINING)
        with torch.no_grad():
            return scores_on_the_way(Looks(), scorer, START, noise)[1]

    chosen = masks(batch.kspace)
    hidden = chosen[:, -1][:, None, None, :].expand(batch.kspace.shape) == 0
    for other in (torch.full_like(batch.kspace, 9.0), -torch.zeros_like(batch.kspace)):
        assert torch.equal(masks(torch.where(hidden, other, batch.kspace)), chosen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "policy", "rate"),
    [
        ("loupe", LearnedDensity(n_cols=24), 0.5),
        (
            "straight-through",
            POLICIES["conv"](n_cols=24, n_rows=8, n_channels=2, n_hidden=16),
            0.02,
        ),
    ],
)
def test_a_sampler_learns_where_the_energy_is(
    method: str, policy: Policy, rate: float, generator: torch.Generator
) -> None:
    """Of images whose columns beyond the fourth from the center are empty, whatever the slice."""
    kspace = fft2c(torch.rand(12, 8, 24, generator=generator))
    images = ifft2c(kspace * center_mask(24, 9)).real
    slices = SliceSet.from_images(images - images.min(), ["a"] * 12)
    own = {"sampler_every": 1, "sampler_batch": 12, "sampler_rate": rate, "n_updates": 25}
    config = joint_config(method, horizon=4, random_share=0.0, n_warm=0, **own)
    optimizer = torch.optim.Adam(policy.parameters())
    material = Material(config, slices, ZeroFilled(), ZeroFilled(), optimizer)
    sampler = SAMPLERS.resolve(method)(policy, material)
    scores = [float(sampler.update(number)) for number in range(25)]
    uniforms = torch.rand(12, 4, generator=generator)
    view = ZeroFilled() if sampler.looks else None
    batch = slices.batch(torch.arange(12))
    chosen = acquire(policy.eval(), batch, config, uniforms, view)[:, -1]
    # Of 22 columns that are left, 7 hold anything: chance would take 1.3 of them.
    assert chosen[:, 8:17].sum(dim=-1).float().mean() > 2 + 3
    assert np.mean(scores[-5:]) > scores[0] + 0.05


@pytest.mark.parametrize("flips", [True, False])
def test_a_sampler_learns_from_slices_that_are_varied_as_the_networks_are(
    flips: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = SliceSet.from_images(torch.rand(12, 8, 10, generator=generator), ["a"] * 12)
    own = {"sampler_every": 1, "sampler_batch": 12, "random_share": 0.0, "flips": flips}
    policy, config = LearnedDensity(n_cols=10), joint_config("loupe", **own)
    learned: list[Tensor] = []

    def watched(inputs: list[Tensor]) -> Tensor:
        learned.extend(SliceBatch(*inputs[: len(SliceBatch.__dataclass_fields__)]).target)
        return torch.zeros(())

    optimizer = torch.optim.Adam(policy.parameters())
    material = Material(config, slices, ZeroFilled(), ZeroFilled(), optimizer)
    sampler = SAMPLERS.resolve("loupe")(policy, material)
    monkeypatch.setattr(sampler, "gradients", watched)
    sampler.update(0)
    plain = slices.batch(torch.arange(12)).target
    n_plain = sum(any(torch.equal(one, other) for other in plain) for one in learned)
    assert 0 < n_plain < 12 if flips else n_plain == 12
    assert policy_config(joint_config("dense", flips=flips)).training.flips is flips  # type: ignore[union-attr]
