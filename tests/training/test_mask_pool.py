"""Masks of the newest acquisitions are drawn with what their slices were varied by."""

import pytest
import torch

from kscout.config import JointTraining, RandomSampling
from kscout.data.slices import SliceSet
from kscout.training.joint.pool import MaskPool
from kscout.training.joint.sampler import moments_of


@pytest.fixture
def slices() -> SliceSet:
    return SliceSet.from_images(torch.rand(4, 16, 16), ["v"] * 4, name="four", split="train")


def test_the_oldest_leave_and_all_moments_are_drawn(slices: SliceSet) -> None:
    pool = MaskPool(slices, n_most=4)
    start = torch.zeros(3, 16, dtype=torch.bool)
    start[:, 8] = True
    masks = moments_of(start, torch.tensor([[1, 2], [3, 4], [5, 6]]))
    assert masks.sum(dim=-1).tolist() == [[1, 2, 3]] * 3
    pool.add(torch.tensor([0, 1, 2]), torch.tensor([[0.1], [0.2], [0.3]]), masks)
    pool.add(torch.tensor([7, 8, 9]), torch.tensor([[0.4], [0.5], [0.6]]), masks)
    assert pool.state()["index"].tolist() == [2, 7, 8, 9]
    uniforms = torch.cartesian_prod(torch.arange(4) / 4, torch.arange(3) / 3 + 0.01)
    index, numbers, drawn = pool.draw(uniforms)
    assert index.tolist() == [2] * 3 + [7] * 3 + [8] * 3 + [9] * 3
    assert torch.equal(numbers[:, 0], torch.tensor([0.3, 0.4, 0.5, 0.6]).repeat_interleave(3))
    assert torch.equal(drawn.view(4, 3, 16), masks[[2, 0, 1, 2]])


def ages(training: JointTraining, n_slices: int) -> list[int]:
    """Return after how many updates each acquisition has left the pool."""
    images = torch.rand(n_slices, 2, 4)
    slices = SliceSet.from_images(images, ["v"] * n_slices, name="few", split="train")
    pool, found = MaskPool(slices, training.n_pooled(n_slices)), {}
    n = min(training.n_refill, n_slices)
    for update in range(0, 12 * training.refill_every, training.refill_every):
        masks = torch.zeros(n, 1, 4, dtype=torch.bool)
        pool.add(torch.full((n,), update), torch.zeros(n, 1), masks)
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
    state = {"index": torch.arange(9), "numbers": torch.zeros(9, 1)}
    pool = MaskPool(slices, n_most=4)
    pool.restore({**state, "masks": torch.zeros(9, 3, 16, dtype=torch.bool)})
    assert pool.state()["index"].tolist() == [5, 6, 7, 8]
