"""Training masks are the paper's: validation masks to the column, training masks in law."""

import numpy as np
import pytest
import torch

from golden_numbers import GOLDEN, Golden
from kscout.config import RECONSTRUCTOR_TRAININGS, JointTraining, RandomSampling
from kscout.data.slices import SliceSet
from kscout.training.augmentation import MaskDistribution
from kscout.training.joint.algorithm import MaskPool
from kscout.training.joint.sampler import moments_of

PAPER = RECONSTRUCTOR_TRAININGS["paper-unet"]


def paper_masks(n_cols: int) -> MaskDistribution:
    return MaskDistribution(n_cols, PAPER.accelerations, PAPER.center_fractions)


@pytest.mark.parametrize("n_cols", [128, 256])
def test_validation_masks_are_the_references(golden: Golden, n_cols: int) -> None:
    with np.load(GOLDEN / "masks.npz") as arrays:
        names = [str(name) for name in arrays["recontrain_names"]]
    expected = golden("masks", f"recontrain_r{n_cols}").bool()
    assert torch.equal(paper_masks(n_cols).of_volumes(names), expected)


def test_expected_number_of_columns_follows_the_accelerations() -> None:
    n_cols, n_slices = 96, 6000
    masks = paper_masks(n_cols).draw(n_slices, 0)
    expected = sum(n_cols / a for a in PAPER.accelerations) / len(PAPER.accelerations)
    # Six standard errors: counts spread by less than 7 columns.
    assert abs(masks.sum(dim=1).double().mean() - expected) < 6 * 7 / n_slices**0.5


def test_the_center_is_always_measured_and_every_other_column_sometimes() -> None:
    frequency = paper_masks(63).draw(2000, "any").double().mean(dim=0)
    assert (frequency[28:36] == 1).all()
    assert (frequency[:20] > 0.02).all() and (frequency[-20:] < 0.25).all()


def test_masks_depend_on_the_key_alone() -> None:
    masks = paper_masks(31)
    assert torch.equal(masks.draw(5, 3, "masks", 1), masks.draw(5, 3, "masks", 1))
    assert not torch.equal(masks.draw(5, 3, "masks", 1), masks.draw(5, 3, "masks", 2))
    assert not torch.equal(masks.draw(5, 3, "masks", 1), masks.draw(5, 4, "masks", 1))


def test_a_center_beyond_the_acceleration_leaves_the_center_alone() -> None:
    masks = MaskDistribution(32, [8.0], [0.5]).draw(7, 0)
    assert torch.equal(masks.sum(dim=1), torch.full((7,), 16))


@pytest.fixture
def slices() -> SliceSet:
    return SliceSet.from_images(torch.rand(4, 16, 16), ["v"] * 4, name="four", split="train")


def test_the_oldest_leave_and_all_moments_are_drawn(slices: SliceSet) -> None:
    pool = MaskPool(slices, n_most=4)
    start = torch.zeros(3, 16, dtype=torch.bool)
    start[:, 8] = True
    masks = moments_of(start, torch.tensor([[1, 2], [3, 4], [5, 6]]))
    assert masks.sum(dim=-1).tolist() == [[1, 2, 3]] * 3
    pool.add(torch.tensor([0, 1, 2]), torch.tensor([True, False, True]), masks)
    pool.add(torch.tensor([7, 8, 9]), torch.tensor([True, False, False]), masks)
    assert pool.state()["index"].tolist() == [2, 7, 8, 9]
    uniforms = torch.cartesian_prod(torch.arange(4) / 4, torch.arange(3) / 3 + 0.01)
    index, is_mirrored, drawn = pool.draw(uniforms)
    assert index.tolist() == [2] * 3 + [7] * 3 + [8] * 3 + [9] * 3
    assert is_mirrored.tolist() == [True] * 6 + [False] * 6
    assert torch.equal(drawn.view(4, 3, 16), masks[[2, 0, 1, 2]])


def ages(training: JointTraining, n_slices: int) -> list[int]:
    """Return after how many updates each acquisition has left the pool."""
    images = torch.rand(n_slices, 2, 4)
    slices = SliceSet.from_images(images, ["v"] * n_slices, name="few", split="train")
    pool, found = MaskPool(slices, training.n_pooled(n_slices)), {}
    n = min(training.n_refill, n_slices)
    for update in range(0, 12 * training.refill_every, training.refill_every):
        masks = torch.zeros(n, 1, 4, dtype=torch.bool)
        pool.add(torch.full((n,), update), torch.zeros(n, dtype=torch.bool), masks)
        there = set(pool.state()["index"].tolist())
        found |= {old: update - old for old in range(0, update, 64) if old not in there | {*found}}
    return [*found.values()]


@pytest.mark.parametrize("n_slices", [1, 3, 40, 255, 256, 300])
def test_a_mask_leaves_the_pool_at_the_same_age_whatever_the_store(n_slices: int) -> None:
    assert ages(RandomSampling(), n_slices) == [512] * 4


@pytest.mark.parametrize(("n_pool", "n_refill"), [(2048, 256), (7, 4), (3, 4), (1000, 300)])
def test_a_store_of_enough_slices_fills_the_pool(n_pool: int, n_refill: int) -> None:
    training = RandomSampling(n_pool=n_pool, n_refill=n_refill)
    for n_slices in (n_refill, n_refill + 1, 5000):
        assert training.n_pooled(n_slices) == n_pool


def test_a_larger_pool_of_before_keeps_its_newest(slices: SliceSet) -> None:
    state = {"index": torch.arange(9), "masks": torch.zeros(9, 3, 16, dtype=torch.bool)}
    numbers = torch.linspace(0, 0.8, 9)
    pool = MaskPool(slices, n_most=4)
    # Versions 0.2 and 0.3 stored numbers, of which the first decided.
    for own in ({"is_mirrored": numbers < 0.5}, {"numbers": torch.stack([numbers, -numbers], 1)}):
        pool.restore({**state, **own})
        assert pool.state()["index"].tolist() == [5, 6, 7, 8]
        assert pool.state()["is_mirrored"].tolist() == (numbers[5:] < 0.5).tolist()
