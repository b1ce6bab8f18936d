"""Varied slices are those that a store of the varied images would hand out."""

from dataclasses import replace

import pytest
import torch

from kscout.config import JointConfig
from kscout.core import SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.training.augmentation import check_varied, coarser, mirrored, varied, zoomed


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


def test_a_magnified_slice_is_what_lies_between_its_pixels() -> None:
    at = (torch.arange(64) - 32) / 64

    def waves(scale: float) -> torch.Tensor:
        y, x = torch.meshgrid(at * scale, at * scale, indexing="ij")
        return 3 + (2 * torch.pi * 9 * y).cos() + (2 * torch.pi * 12 * x + 1).sin()

    batch = batch_of(waves(1.0).expand(3, -1, -1))
    found = zoomed(batch, torch.tensor([1.6, 1.25, 1.0])).target
    # Lines between the pixels would miss the waves by up to 0.26.
    for one, factor in zip(found, (1.6, 1.25, 1.0), strict=True):
        torch.testing.assert_close(
            one[4:-4, 4:-4], waves(1 / factor)[4:-4, 4:-4], atol=0.06, rtol=0
        )


def test_what_is_finer_than_the_pixels_of_a_reduced_slice_does_not_fold_in() -> None:
    across = (torch.arange(64) - 32) / 64
    fine = 2 + (2 * torch.pi * 24 * across).cos().expand(3, 64, 64)
    found = zoomed(batch_of(fine), torch.tensor([0.6, 0.9, 1.0])).target[:, 24:40, 24:40]
    torch.testing.assert_close(found[0], torch.full((16, 16), 2.0), atol=0.02, rtol=0)
    assert found[1].std() > 0.6 and found[2].std() > 0.6


def test_half_of_the_slices_keep_their_size() -> None:
    batch = batch_of(images())
    numbers = torch.tensor([[0.9, 0.49], [0.9, 0.99], [0.9, 0.51]])
    training = replace(JointConfig.of("fixed").training, zoom=1.5)
    found = varied(batch, numbers, training)
    assert torch.equal(found.kspace[0], batch.kspace[0])
    wanted = zoomed(batch, torch.tensor([1.0, 1.5**0.96, 1.5**-0.96]))
    assert_alike(found, wanted)


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


def test_what_are_no_images_is_not_magnified() -> None:
    training = JointConfig.of("fixed").training
    check_varied(replace(training, flips=True), "kspace")
    with pytest.raises(ConfigError, match="zoom is for images, the store holds kspace"):
        check_varied(replace(training, zoom=2.0), "kspace")
