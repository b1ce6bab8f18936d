"""Coils: exact operators, BART's maps and images, and nothing told of what was not measured."""

import pytest
import torch
from torch import Tensor

from coil_slices import N_COILS, N_COLS, N_ROWS, batch_of, disks, loops, several_coils
from golden_numbers import Golden
from kscout.errors import ConfigError
from kscout.physics import center_mask, coils, fft2c, ifft2c
from kscout.physics.fourier import column_ramps, ifft_rows
from kscout.physics.measurement import Measurement, Pairs, measure_columns
from kscout.physics.normalization import magnitude
from kscout.physics.sampling import acquire, apply_mask, center_columns
from kscout.reconstruction.sense import normal, solve


def agreement(ours: Tensor, theirs: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(theirs, dim=-3).clamp(min=1e-9)
    return (ours.conj() * theirs).sum(dim=-3).abs() / length


def as_complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.float().contiguous())


def test_encoding_and_its_adjoint_agree(generator: torch.Generator) -> None:
    shape = (2, 3, 9, 11)
    maps, kspace = (
        torch.randn(shape, dtype=torch.complex128, generator=generator) for _ in range(2)
    )
    image = torch.randn(2, 9, 11, dtype=torch.complex128, generator=generator)
    mask = torch.rand(2, 11, generator=generator) < 0.5
    left = (coils.encode(image, mask, maps).conj() * kspace).sum()
    right = (image.conj() * coils.encode_adjoint(kspace, mask, maps)).sum()
    torch.testing.assert_close(left, right)
    twice = coils.encode_adjoint(coils.encode(image, mask, maps), mask, maps)
    torch.testing.assert_close(normal(image, mask, maps), twice)


def test_combining_undoes_expanding() -> None:
    maps, image = loops(3, 9, 11), disks(9, 11) + 0j
    torch.testing.assert_close(coils.combine(coils.expand(image, maps), maps), image)


def test_maps_are_found_in_central_columns() -> None:
    kspace, maps, image = several_coils()
    found = coils.sensitivities(kspace, n_center=12)
    norm = torch.linalg.vector_norm(found, dim=1)
    torch.testing.assert_close(norm, torch.ones_like(norm))
    inside = image > 0
    assert agreement(found, maps)[inside].mean() > 0.995
    combined = coils.combine(ifft2c(kspace), found)
    torch.testing.assert_close(combined.abs()[inside], image[inside], atol=0.05, rtol=0)
    assert combined.real[inside].min() > 0


@pytest.mark.slow
def test_maps_agree_with_those_of_bart(golden: Golden) -> None:
    block = as_complex(golden("multicoil", "center_times_1000")) / 1000
    kspace = torch.zeros(13, 224, 224, dtype=torch.complex64)
    kspace[:, 100:124, 100:124] = block
    rows, foreground = golden("multicoil", "rows"), golden("multicoil", "foreground")
    ours = coils.sensitivities(kspace, n_center=int(golden("multicoil", "n_center")))
    found = agreement(ours[:, rows], as_complex(golden("multicoil", "maps")))[foreground]
    assert found.mean() > 0.999 and found.min() > 0.99


def test_sense_agrees_with_bart(golden: Golden) -> None:
    # Rows of the image are apart where whole columns are measured: BART's solution of some of them.
    mask, expected = golden("multicoil", "mask"), golden("multicoil", "sense")
    lines = torch.zeros(13, *expected.shape, dtype=torch.complex64)
    lines[..., mask] = golden("multicoil", "lines")
    shifted = torch.fft.fft(torch.fft.ifftshift(lines, dim=-2), dim=-2, norm="ortho")
    maps = as_complex(golden("multicoil", "maps"))
    regularization = float(golden("multicoil", "regularization"))
    found = solve(torch.fft.fftshift(shifted, dim=-2), mask, maps, regularization=regularization)
    error = torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected)
    assert error < 1e-3


def test_sense_solves_its_equation_for_every_image_of_a_batch(generator: torch.Generator) -> None:
    kspace, maps, _ = several_coils(9, 14)
    mask = torch.rand(2, 14, generator=generator) < 0.6
    found = solve(kspace, mask, maps, regularization=0.02)
    left = normal(found, mask, maps) + 0.02 * found
    torch.testing.assert_close(left, coils.encode_adjoint(kspace, mask, maps), atol=1e-5, rtol=0)
    alone = solve(kspace[1], mask[1], maps[1], regularization=0.02)
    torch.testing.assert_close(found[1], alone, atol=1e-4, rtol=0)


def test_compression_keeps_the_energy_of_few_virtual_coils() -> None:
    kspace, _, _ = several_coils()
    mixing = torch.randn(9, N_COILS, generator=torch.Generator().manual_seed(1)) + 0j
    mixed = torch.einsum("vc,bcrk->bvrk", torch.linalg.qr(mixing).Q, kspace)
    found = coils.compress(mixed, n_coils=N_COILS, n_center=12)
    torch.testing.assert_close(
        magnitude(ifft2c(found)), magnitude(ifft2c(mixed)), atol=1e-4, rtol=0
    )
    energy = found.abs().square().sum(dim=(0, 2, 3))
    assert (energy.diff() <= 0).all()
    assert coils.compress(kspace, n_center=12) is kspace


def test_central_columns_are_counted_as_center_mask_lays_them() -> None:
    for n_cols in (10, 11):
        for n in range(1, n_cols + 1):
            mask = center_mask(n_cols, n)
            assert coils.n_central(mask) == n and torch.equal(coils.central_mask(mask), mask)
            scattered = mask.clone()
            scattered[0] = True
            assert coils.n_central(scattered) in (n, n_cols)
        assert coils.n_central(~center_mask(n_cols, 1)) == 0


def test_each_image_is_calibrated_by_its_own_mask() -> None:
    kspace, _, _ = several_coils()
    mask = torch.stack([center_mask(N_COLS, 9), center_mask(N_COLS, 14)])
    found = coils.calibrated(kspace, mask)
    for index, n_center in enumerate((9, 14)):
        alone = coils.sensitivities(kspace[index], n_center=n_center)
        torch.testing.assert_close(found[index], alone, atol=1e-3, rtol=0)


@pytest.mark.parametrize("n_center", [0, 7, N_COLS + 1])
def test_too_few_central_columns_are_refused_in_one_sentence(n_center: int) -> None:
    kspace, _, _ = several_coils()
    with pytest.raises(ConfigError, match=rf"need 8 to {N_COLS} central columns, found {n_center}"):
        coils.sensitivities(kspace, n_center=n_center)


def test_one_coil_keeps_the_phase_of_the_object_alone() -> None:
    image = disks(N_ROWS, N_COLS) * torch.polar(torch.tensor(1.0), torch.linspace(0, 2, N_COLS))
    maps = coils.sensitivities(fft2c(image)[None, None], n_center=5)
    torch.testing.assert_close(maps.abs(), torch.ones_like(maps.abs()))
    combined = coils.combine(image[None, None], maps)[0]
    inside = image.abs() > 0
    assert combined.imag[inside].abs().mean() < 0.1 * combined.real[inside].mean()


def test_combined_observations_are_nearly_real_and_hold_the_image() -> None:
    kspace, _, image = several_coils()
    mask = center_mask(N_COLS, 9).expand(2, -1)
    full = coils.combined(ifft2c(kspace), mask)
    assert full.shape == (2, 1, 40, 33)
    inside = image > 0
    seen = full[:, 0][inside]
    torch.testing.assert_close(seen.abs(), image[inside], atol=0.1, rtol=0)
    assert seen.imag.abs().mean() < 0.1 * seen.real.mean()


UNSEEN = {"others": -37.0, "minus zero": -0.0, "not a number": torch.nan, "infinite": torch.inf}


@pytest.mark.parametrize("unseen", UNSEEN.values(), ids=UNSEEN)
def test_nothing_unmeasured_leaks(unseen: float) -> None:
    kspace, _, _ = several_coils()
    mask = center_mask(N_COLS, 12).expand(2, -1)
    mask = mask | (torch.arange(N_COLS) == 2)
    other = torch.where(mask[:, None, None], kspace, torch.complex(*torch.tensor([unseen] * 2)))
    seen, also = (Measurement.of(y, mask) for y in (kspace, other))
    for one, two in [
        (apply_mask(kspace, mask), apply_mask(other, mask)),
        (seen.zero_filled, also.zero_filled),
        (seen.normalized, also.normalized),
        (coils.calibrated(kspace, mask), coils.calibrated(other, mask)),
        (coils.rough_sensitivities(kspace, mask), coils.rough_sensitivities(other, mask)),
        (coils.combined(seen.zero_filled, mask), coils.combined(also.zero_filled, mask)),
        (
            coils.compress(kspace, n_coils=2, n_center=12)[..., mask[0]],
            coils.compress(other, n_coils=2, n_center=12)[..., mask[0]],
        ),
    ]:
        # To the last bit, the sign of a zero included.
        assert one.contiguous().numpy().tobytes() == two.contiguous().numpy().tobytes()


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
    batch = batch_of(complex_noise(2, 1, 5, 7, generator=generator))
    found = batch.rows(torch.tensor([1, 1, 0]))
    for one, other in zip(found.tensors(), batch.tensors(), strict=True):
        assert torch.equal(one, torch.stack([other[1], other[1], other[0]]))


def test_only_measured_columns_are_kept(generator: torch.Generator) -> None:
    full, mask = complex_noise(2, 3, 9, 11, generator=generator), center_mask(11, 4).expand(2, -1)
    measured = Measurement.of(full, mask)
    torch.testing.assert_close(measured.kspace, full * mask[:, None, None], atol=1e-5, rtol=0)
    assert not measured.kspace[..., ~mask[0]].any()
    torch.testing.assert_close(fft2c(measured.zero_filled), measured.kspace, atol=1e-5, rtol=0)


def test_derived_tensors_are_computed_once_or_taken_as_given(generator: torch.Generator) -> None:
    full = complex_noise(2, 3, 9, 11, generator=generator)
    measured = Measurement.of(full, center_mask(11, 4).expand(2, -1))
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
    full = complex_noise(2, 3, 9, 11, generator=generator).requires_grad_()
    mask = center_mask(11, 4).expand(2, -1)
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
