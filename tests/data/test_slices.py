"""Sets of slices reproduce the reference loader's inputs, and keep what keys random draws."""

import numpy as np
import pytest
import torch
from torch import Tensor

from golden_numbers import Golden
from kscout.data.slices import SliceSet
from kscout.errors import DataError


def golden_set(golden: Golden, size: int) -> SliceSet:
    margin = (128 - size) // 2
    images = golden("inputs", "images128")[:, margin : margin + size, margin : margin + size]
    volumes = ["file1900000.h5"] * 3 + ["file1900001.h5"] * 3
    return SliceSet.from_images(images, volumes, slices=[1, 2, 3, 1, 2, 3])


def close(actual: Tensor, expected: Tensor) -> None:
    """Within the stated tolerance: 1e-5 of the maximum."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("size", [64, 128])
def test_statistics_and_data_range_are_the_references(golden: Golden, size: int) -> None:
    batch = golden_set(golden, size).batch(torch.arange(6))
    close(batch.data_range, golden("inputs", f"data_range_r{size}"))
    close(batch.target_mean, golden("inputs", f"gt_mean_r{size}"))
    close(batch.target_std, golden("inputs", f"gt_std_r{size}"))


def test_target_is_the_references_clamped_image(golden: Golden) -> None:
    slices = golden_set(golden, 128)
    batch = slices.batch(torch.arange(3))
    close(batch.target, golden("inputs", "unnorm_gt_r128"))
    # Slice 1 has pixels beyond six deviations: its target must differ from the image.
    assert (batch.target[1] - slices.magnitudes()[1]).abs().max() > 1e-3 * batch.target[1].max()


def test_kspace_is_the_references(golden: Golden) -> None:
    kspace = golden_set(golden, 128).batch(torch.arange(2)).kspace
    expected = torch.view_as_complex(golden("inputs", "kspace_r128"))
    assert kspace.shape == (2, 1, 128, 128)
    close(torch.view_as_real(kspace[:, 0]), torch.view_as_real(expected))


def odd_set(generator: torch.Generator) -> SliceSet:
    images = torch.rand(5, 9, 11, generator=generator)
    return SliceSet.from_images(images, ["a", "b", "a", "b", "a"], split="val")


def test_data_range_is_shared_by_a_volume_wherever_its_slices_lie(
    generator: torch.Generator,
) -> None:
    slices = odd_set(generator)
    close(slices.data_range[0], slices.magnitudes()[[0, 2, 4]].max())
    close(slices.data_range[1], slices.magnitudes()[[1, 3]].max())
    assert slices.slices == (0, 0, 1, 1, 2)


def test_a_subset_keeps_ranges_and_positions(generator: torch.Generator) -> None:
    slices = odd_set(generator)
    part = slices.subset(torch.tensor([3, 0])).subset([0])
    batch = part.batch([0])
    assert batch.index.tolist() == [3]
    assert batch.data_range[0] == slices.data_range[3]
    assert (part.volumes, part.slices, part.split) == (("b",), (1,), "val")


def test_batches_cover_every_slice_once_in_order(generator: torch.Generator) -> None:
    slices = odd_set(generator)
    sizes, index = zip(*[(len(b), b.index) for b in slices.batches(2)], strict=True)
    assert sizes == (2, 2, 1)
    assert torch.cat(index).tolist() == [0, 1, 2, 3, 4]


def test_volumes_are_chosen_by_name(generator: torch.Generator) -> None:
    assert odd_set(generator).of_volumes("b").position.tolist() == [1, 3]
    with pytest.raises(DataError, match="'c' among the 2 volumes"):
        odd_set(generator).of_volumes("c")


def test_one_name_per_image_is_required() -> None:
    with pytest.raises(DataError, match="3 images with 2 volume names"):
        SliceSet.from_images(torch.rand(3, 4, 4), ["a", "b"])


def test_a_volume_that_shows_nothing_is_refused() -> None:
    images = torch.rand(3, 4, 5)
    images[1:] = 0
    SliceSet.from_images(images, ["a", "a", "a"])
    with pytest.raises(DataError, match="volume 'b' has pixels up to 0; all must be finite"):
        SliceSet.from_images(images, ["a", "b", "b"])


def test_a_batch_is_never_larger_than_the_set() -> None:
    slices = SliceSet.from_images(torch.ones(3, 4, 5), ["a"] * 3, name="ones", split="test")
    assert [len(batch) for batch in slices.batches(2**70)] == [3]


def test_arrays_of_the_wrong_kind_are_one_sentence() -> None:
    images, kspace = np.ones((2, 9, 11), np.complex64), np.ones((2, 3, 9, 11), np.complex64)
    for wrong in (images, kspace.real, images.real[0]):
        with pytest.raises(
            DataError, match=r"images are .* give real magnitudes \[slice, row, col\]"
        ):
            SliceSet.from_images(wrong, ["a"] * len(wrong))
    for wrong in (images, kspace.real):
        with pytest.raises(DataError, match=r"k-space is .* or images to SliceSet\.from_images"):
            SliceSet.from_kspace(wrong, ["a"] * len(wrong))


def test_arrays_of_any_layout_are_read() -> None:
    images = np.random.default_rng(0).random((3, 4, 5), dtype=np.float32)
    for array in (images.astype(">f4"), images[:, ::-1].copy()[:, ::-1], np.asfortranarray(images)):
        found = SliceSet.from_images(array, ["a"] * 3)
        assert np.array_equal(found.magnitudes().numpy(), images)
