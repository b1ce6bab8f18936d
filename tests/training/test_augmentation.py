"""Varied slices are those that a store of the varied images would hand out."""

import torch

from kscout.core import SliceBatch
from kscout.data.slices import SliceSet
from kscout.training.augmentation import coarser, mirrored, zoomed


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 18, 12, generator=generator).cumsum(dim=1)


def batch_of(values: torch.Tensor) -> SliceBatch:
    return SliceSet.from_images(values, list("abc")).batch(torch.arange(3))


def assert_alike(one: SliceBatch, two: SliceBatch) -> None:
    for a, b in zip(one.tensors(), two.tensors(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_some_slices_are_mirrored_at_the_pixel_of_the_center() -> None:
    is_mirrored = torch.tensor([True, False, True])
    turned = images().flip(-1).roll(1, dims=-1)
    wanted = torch.where(is_mirrored[:, None, None], turned, images())
    assert_alike(mirrored(batch_of(images()), is_mirrored), batch_of(wanted))


def test_columns_outside_the_matrix_are_mirrored_too() -> None:
    batch = batch_of(images())
    batch.selectable[:, :3] = False
    found = mirrored(batch, torch.tensor([True, False, True])).selectable
    assert found.sum(dim=-1).tolist() == [9, 9, 9]
    assert found[0].int().tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]


def test_a_magnified_slice_shows_its_middle_and_a_reduced_one_is_dark_around() -> None:
    batch = batch_of(images())
    assert_alike(zoomed(batch, torch.ones(3)), batch)
    found = zoomed(batch, torch.tensor([2.0, 1.0, 0.5]))
    middle = batch.target[0, 4:14, 3:9]
    assert (found.target[0].mean() - middle.mean()).abs() < 0.1 * middle.mean()
    assert found.target[2, 0].abs().max() < 1e-4 * batch.target[2].max()
    assert_alike(
        SliceBatch(*(x[1:2] for x in found.tensors())),
        SliceBatch(*(x[1:2] for x in batch.tensors())),
    )


def test_a_coarser_slice_keeps_brightness_field_of_view_and_central_kspace() -> None:
    batch = batch_of(images())
    found = coarser(batch, 8)
    assert found.kspace.shape == (3, 1, 12, 8) and found.selectable.shape == (3, 8)
    torch.testing.assert_close(found.target_mean, batch.target_mean, rtol=0.05, atol=0)
    # But for the outermost, which have no opposites any more, frequencies are those of the whole.
    ratio = (12 * 8 / (18 * 12)) ** 0.5
    inner = batch.kspace[:, :, 4:14, 3:9] * ratio
    torch.testing.assert_close(found.kspace[:, :, 1:11, 1:7], inner, rtol=0.05, atol=0.5)
    assert torch.equal(found.data_range, batch.data_range)
