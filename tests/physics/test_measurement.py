"""A measurement holds what was measured, derives the rest once, and lets gradients through."""

import torch

from kscout.physics import center_mask, fft2c
from kscout.physics.measurement import Measurement
from kscout.physics.normalization import magnitude


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
