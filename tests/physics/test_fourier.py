"""Transforms and measured k-space: unitary, golden, and only measured columns are kept."""

import pytest
import torch

from golden_numbers import Golden
from kscout.core import SliceBatch
from kscout.physics.fourier import column_ramps, fft2c, ifft2c, ifft_rows
from kscout.physics.measurement import Measurement, Pairs, measure_columns
from kscout.physics.normalization import magnitude
from kscout.physics.sampling import acquire, apply_mask, center_columns, center_mask


def complex_noise(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64, generator=generator)


def test_transform_is_unitary_and_inverts(generator: torch.Generator) -> None:
    x, y = (complex_noise(2, 9, 11, generator=generator) for _ in range(2))
    torch.testing.assert_close(ifft2c(fft2c(x)), x)
    torch.testing.assert_close((fft2c(x).conj() * y).sum(), (x.conj() * ifft2c(y)).sum())


def test_dc_lies_in_the_center() -> None:
    kspace = fft2c(torch.ones(9, 12))
    assert kspace.abs().argmax() == 4 * 12 + 6


def test_kspace_is_golden(golden: Golden) -> None:
    images, expected = golden("inputs", "images128")[:2], golden("inputs", "kspace_r128")
    expected = torch.view_as_complex(expected.contiguous())
    found = fft2c(images)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("n_cols", [64, 128, 256])
@pytest.mark.parametrize("acceleration", [8, 32])
def test_center_columns_are_golden(golden: Golden, n_cols: int, acceleration: int) -> None:
    expected = golden("masks", f"center_r{n_cols}_a{acceleration}").tolist()
    assert list(center_columns(n_cols, n_cols // acceleration)) == expected
    assert center_mask(n_cols, n_cols // acceleration).nonzero()[:, 0].tolist() == expected


def test_adding_columns_equals_the_full_transform(generator: torch.Generator) -> None:
    kspace = complex_noise(3, 2, 9, 11, generator=generator)
    mask = center_mask(11, 4).expand(3, -1)
    columns, parent = torch.tensor([0, 1, 10, 2, 8, 0]), torch.arange(3).repeat_interleave(2)
    found = measure_columns(
        ifft2c(apply_mask(kspace, mask)),
        mask,
        ifft_rows(kspace).transpose(-2, -1).contiguous(),
        column_ramps(11),
        Pairs(parent, columns, parent),
    )
    grown = acquire(mask[parent], columns)
    assert torch.equal(found.mask, grown)
    expected = ifft2c(apply_mask(kspace[parent], grown))
    torch.testing.assert_close(found.zero_filled, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.kspace, apply_mask(kspace[parent], grown), atol=1e-5, rtol=0)


def test_acquire_only_grows_the_mask() -> None:
    mask = center_mask(9, 3).expand(4, -1)
    grown = acquire(mask, torch.tensor([0, 3, 8, 1]))
    assert (grown >= mask).all()
    assert grown.sum(-1).tolist() == [4, 3, 4, 4]


def test_rows_of_a_batch_may_repeat(generator: torch.Generator) -> None:
    batch = SliceBatch(
        kspace=complex_noise(2, 1, 5, 7, generator=generator),
        target=torch.rand(2, 5, 7),
        target_mean=torch.rand(2),
        target_std=torch.rand(2),
        data_range=torch.rand(2),
        selectable=torch.ones(2, 7, dtype=torch.bool),
        index=torch.tensor([4, 6]),
    )
    assert batch.rows(torch.tensor([1, 1, 0])).index.tolist() == [6, 6, 4]


def kspace(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(2, 3, 9, 11, dtype=torch.complex64, generator=generator)


def test_only_measured_columns_are_kept(generator: torch.Generator) -> None:
    full, mask = kspace(generator), center_mask(11, 4).expand(2, -1)
    measured = Measurement.of(full, mask)
    torch.testing.assert_close(measured.kspace, full * mask[:, None, None], atol=1e-5, rtol=0)
    assert not measured.kspace[..., ~mask[0]].any()
    torch.testing.assert_close(fft2c(measured.zero_filled), measured.kspace, atol=1e-5, rtol=0)


def test_derived_tensors_are_computed_once_or_taken_as_given(generator: torch.Generator) -> None:
    measured = Measurement.of(kspace(generator), center_mask(11, 4).expand(2, -1))
    assert measured.magnitude is measured.magnitude and measured.std is measured.std
    expected = measured.zero_filled.abs().square().sum(dim=1).sqrt()
    torch.testing.assert_close(measured.magnitude, expected)
    flat = expected.flatten(1)
    torch.testing.assert_close(measured.mean, flat.mean(dim=1))
    torch.testing.assert_close(measured.std, flat.std(dim=1))
    summary = (torch.rand(2, 9, 11), torch.rand(2), torch.rand(2))
    given = Measurement(measured.zero_filled, measured.mask, summary=summary)
    assert (given.magnitude, given.mean, given.std) == summary


def test_gradients_flow_back_to_kspace(generator: torch.Generator) -> None:
    full, mask = kspace(generator).requires_grad_(), center_mask(11, 4).expand(2, -1)
    measured = Measurement.of(full, mask)
    (measured.normalized.square().sum() + measured.std.sum()).backward()
    assert full.grad is not None
    assert full.grad[..., mask[0]].abs().min() > 0 and not full.grad[..., ~mask[0]].any()


def test_dark_pixels_of_several_coils_have_a_gradient_of_zero() -> None:
    image = torch.zeros(3, 4, 4, dtype=torch.complex64)
    image[:, 1] = 3 + 4j
    image.requires_grad_()
    combined = magnitude(image)
    combined.sum().backward()
    assert torch.equal(combined, magnitude(image.detach()))
    assert image.grad is not None and image.grad[:, 1].abs().min() > 0
    assert not image.grad[:, [0, 2, 3]].any()
