"""The solver solves its problem: certified by duality, and by another method."""

import pytest
import torch
from torch import Tensor

from coil_slices import coil_batch, several_coils
from golden_numbers import Golden
from kscout.errors import ConfigError
from kscout.metrics import ssim
from kscout.physics import coils
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import denormalize
from kscout.physics.sampling import apply_mask, center_mask
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.total_variation import (
    PENALTY_PER_WEIGHT,
    SenseTotalVariation,
    TotalVariation,
    field_length,
    gradient,
    gradient_adjoint,
    laplacian,
    shifted_mask,
    solve,
    solve_with_coils,
)
from kscout.reconstruction.zero_filled import ZeroFilled

WEIGHT = 2e-3


def phantom(n_rows: int, n_cols: int) -> Tensor:
    """A bright ellipse with a dark ellipse and two boxes inside."""
    row = torch.linspace(-1, 1, n_rows)[:, None]
    col = torch.linspace(-1, 1, n_cols)
    image = (row.square() / 0.8 + col.square() / 0.6 < 1).float()
    image -= 0.4 * ((row - 0.2).square() / 0.2 + (col + 0.1).square() / 0.1 < 1).float()
    image[n_rows // 3 : n_rows // 2, n_cols // 2 : 2 * n_cols // 3] = 0.7
    return image


def problem(
    generator: torch.Generator, n_rows: int = 40, n_cols: int = 52
) -> tuple[Tensor, Tensor, Tensor]:
    """Return full k-space of a few phantoms with phase, and masks of a third of the columns."""
    angles = torch.linspace(0, 2, n_rows)[:, None] * torch.linspace(-1, 1, n_cols)
    clean = phantom(n_rows, n_cols)
    images = torch.stack([clean + 0j, clean * torch.exp(1j * angles), clean.flip(0) * 0.5])
    mask = center_mask(n_cols, 6) | (torch.rand(3, n_cols, generator=generator) < 0.25)
    return fft2c(images)[:, None], mask, images.abs()


def primal_objective(image: Tensor, zero_filled: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Return |M F x - y|^2 / 2 + weight * TV(x) of each image, which `solve` minimizes."""
    residual = _keep_measured(image - zero_filled, mask)
    variation = field_length(gradient(image)).sum(dim=(1, 2, 3))
    return residual.abs().square().sum(dim=(1, 2)) / 2 + weight * variation


def dual_objective(dual: Tensor, zero_filled: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Return a lower bound of the primal objective, exact for the optimal dual field.

    The dual problem maximizes `-|w|^2 / 2 - <w, zero_filled>` for `w` = minus the adjoint gradient
    of a field that is nowhere longer than the weight, where `w` may hold measured columns only.
    Any field becomes such a one: project it on the columns, then scale it to the best length.
    """
    adjoint = gradient_adjoint(dual)
    excess = torch.fft.fft2(adjoint - _keep_measured(adjoint, mask))
    eigenvalues = laplacian(dual[:, 0])
    potential = torch.fft.ifft2(torch.where(eigenvalues > 0, excess / eigenvalues, 0))
    feasible = dual - gradient(potential)
    longest = field_length(feasible).amax(dim=(1, 2, 3))
    w = -gradient_adjoint(feasible)
    energy = w.abs().square().sum(dim=(1, 2))
    slope = -(w.conj() * zero_filled).real.sum(dim=(1, 2))
    tiny = torch.finfo(energy.dtype).tiny
    scale = (slope / energy.clamp(min=tiny)).clamp(min=0).minimum(weight / longest.clamp(min=tiny))
    return scale * slope - scale.square() * energy / 2


def _keep_measured(image: Tensor, mask: Tensor) -> Tensor:
    # Along columns alone: the transform over rows cancels.
    return torch.fft.ifft(torch.fft.fft(image, dim=-1) * shifted_mask(mask), dim=-1)


def relative_gap(zero_filled: Tensor, mask: Tensor, n_iterations: int) -> Tensor:
    weight = torch.full((len(mask),), WEIGHT, dtype=zero_filled.real.dtype)
    solution = solve(
        zero_filled, mask, weight, n_iterations=n_iterations, penalty=PENALTY_PER_WEIGHT * WEIGHT
    )
    primal = primal_objective(solution.image, zero_filled, mask, weight)
    dual = dual_objective(solution.dual, zero_filled, mask, weight)
    return (primal - dual).abs() / primal


def test_the_duality_gap_closes_below_a_thousandth(generator: torch.Generator) -> None:
    kspace, mask, _ = problem(generator)
    assert relative_gap(ifft2c(apply_mask(kspace, mask))[:, 0], mask, 300).max() < 1e-3


def test_on_realistic_images_a_hundred_iterations_close_the_gap(golden: Golden) -> None:
    image = golden("inputs", "images128")[[0, 3]]
    mask = golden("inputs", "mask_r128_a8")[[0, 3]].bool() | (torch.arange(128) % 5 == 0)
    zero_filled = ifft2c(fft2c(image)[:, None] * mask[:, None, None])[:, 0]
    assert relative_gap(zero_filled / zero_filled.abs().amax(), mask, 100).max() < 1e-3


def test_it_beats_zero_filling_on_piecewise_constant_images(generator: torch.Generator) -> None:
    kspace, mask, target = problem(generator, 64, 72)
    data_range = target.amax(dim=(1, 2))
    scores = []
    for reconstructor in (ZeroFilled(), TotalVariation()):
        found = reconstructor(kspace, mask)
        image = denormalize(found.image, found.mean, found.std)
        scores.append(ssim(image, target, data_range=data_range))
    assert (scores[1] > scores[0] + 0.1).all()


def test_a_full_mask_and_a_small_weight_give_the_image_back(generator: torch.Generator) -> None:
    kspace, mask, target = problem(generator)
    found = TotalVariation(weight=1e-6)(kspace, torch.ones_like(mask))
    image = denormalize(found.image, found.mean, found.std)
    torch.testing.assert_close(image, target, atol=1e-3, rtol=0)


def test_a_huge_weight_leaves_a_flat_image(generator: torch.Generator) -> None:
    kspace, mask, _ = problem(generator)
    zero_filled = ifft2c(apply_mask(kspace, mask))[:, 0]
    weight = torch.full((3,), 100.0)
    image = solve(zero_filled, mask, weight, n_iterations=200, penalty=10.0).image
    mean = zero_filled.mean(dim=(1, 2), keepdim=True).expand_as(image)
    torch.testing.assert_close(image, mean, atol=1e-3, rtol=0)


def test_coils_are_solved_apart_and_then_combined(generator: torch.Generator) -> None:
    kspace, mask, _ = problem(generator)
    coils = torch.cat([kspace, 0.3j * kspace.flip(0)], dim=1)
    found = TotalVariation(n_iterations=30)(coils, mask)
    zero_filled = ifft2c(apply_mask(coils, mask))
    unit = zero_filled.abs().square().sum(1).sqrt().amax(dim=(1, 2))
    apart = [
        solve(zero_filled[:, coil], mask, 2e-3 * unit, n_iterations=30, penalty=0.06).image
        for coil in range(2)
    ]
    expected = (apart[0].abs().square() + apart[1].abs().square()).sqrt()
    image = denormalize(found.image, found.mean, found.std)
    # Solved in other units, hence with another penalty: both are near the same solution.
    torch.testing.assert_close(image, expected, atol=5e-3, rtol=0)


def test_without_the_dc_column_the_image_stays_finite(generator: torch.Generator) -> None:
    kspace, mask, _ = problem(generator)
    mask[:, 52 // 2] = False
    found = TotalVariation()(kspace, mask)
    assert found.image.isfinite().all()


def test_no_data_gives_an_image_of_zeros() -> None:
    found = TotalVariation()(torch.zeros(2, 1, 8, 11) + 0j, torch.ones(2, 11).bool())
    assert (found.image == 0).all()


@pytest.mark.parametrize("weight, n_iterations", [(0.0, 5), (-1.0, 5), (0.1, 0)])
def test_settings_without_a_solution_are_refused(weight: float, n_iterations: int) -> None:
    with pytest.raises(ConfigError, match="both must be above zero"):
        Sense(regularization=weight, n_iterations=n_iterations)
    for kind in (TotalVariation, SenseTotalVariation):
        with pytest.raises(ConfigError, match="both must be above zero"):
            kind(weight=weight, n_iterations=n_iterations)


def masks(n_cols: int) -> Tensor:
    mask = center_mask(n_cols, 9) | (torch.arange(n_cols) % 3 == 0)
    return mask.expand(2, -1)


@pytest.mark.slow
def test_with_one_coil_it_is_the_solution_of_the_exact_splitting() -> None:
    kspace, _, image = several_coils()
    mask, alone = masks(33), torch.ones(2, 1, 40, 33, dtype=torch.complex64)
    kspace = coils.fft2c(image[:, None] + 0j)
    weighted = coils.encode_adjoint(kspace, mask, alone)
    found = solve_with_coils(weighted, mask, alone, weight=WEIGHT, n_iterations=100)
    weights = torch.full((2,), WEIGHT)
    exact = solve(weighted, mask, weights, n_iterations=300, penalty=30 * WEIGHT).image
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)


@pytest.mark.slow
def test_no_image_nearby_has_a_lower_objective(generator: torch.Generator) -> None:
    kspace, maps, _ = several_coils()
    mask = masks(33)
    weighted = coils.encode_adjoint(kspace, mask, maps)
    found = solve_with_coils(weighted, mask, maps, weight=WEIGHT, n_iterations=100)

    def objective(image: Tensor) -> Tensor:
        misfit = coils.encode(image, mask, maps) - apply_mask(kspace, mask)
        variation = field_length(gradient(image)).sum(dim=(-3, -2, -1))
        return misfit.abs().square().sum(dim=(1, 2, 3)) / 2 + WEIGHT * variation

    least = objective(found)
    for size in (1e-3, 1e-2, 1e-1):
        noise = torch.randn(found.shape, dtype=found.dtype, generator=generator)
        assert (objective(found + size * noise) > least).all()
        assert (objective((1 - size) * found + size * weighted) > least).all()


def test_it_beats_least_squares_on_piecewise_constant_images() -> None:
    batch, mask = coil_batch(), center_mask(33, 9) | (torch.arange(33) % 4 == 0)
    errors = []
    for reconstructor in (Sense(), SenseTotalVariation()):
        found = reconstructor(batch.kspace, mask.expand(2, -1))
        image = denormalize(found.image, found.mean, found.std)
        errors.append((image - batch.target).square().mean())
    assert errors[1] < 0.8 * errors[0]
