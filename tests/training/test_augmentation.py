"""Mirrored slices are those that a store of the mirrored images would hand out."""

import torch

from kscout.core import SliceBatch
from kscout.data.slices import SliceSet
from kscout.training.augmentation import mirrored


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 18, 12, generator=generator).cumsum(dim=1)


def batch_of(values: torch.Tensor) -> SliceBatch:
    return SliceSet.from_images(values, list("abc")).batch(torch.arange(3))


def test_some_slices_are_mirrored_at_the_pixel_of_the_center() -> None:
    is_mirrored = torch.tensor([True, False, True])
    turned = images().flip(-1).roll(1, dims=-1)
    wanted = torch.where(is_mirrored[:, None, None], turned, images())
    found = mirrored(batch_of(images()), is_mirrored).tensors()
    for one, other in zip(found, batch_of(wanted).tensors(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_columns_outside_the_matrix_are_mirrored_too() -> None:
    batch = batch_of(images())
    batch.selectable[:, :3] = False
    found = mirrored(batch, torch.tensor([True, False, True])).selectable
    assert found.sum(dim=-1).tolist() == [9, 9, 9]
    assert found[0].int().tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]
