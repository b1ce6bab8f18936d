"""Total variation over all coils: the solution of one coil, a minimum, and better images."""

import pytest
import torch
from torch import Tensor

from coil_slices import coil_batch, several_coils
from kscout.errors import ConfigError
from kscout.physics import center_mask, coils
from kscout.physics.normalization import denormalize
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.total_variation import (
    SenseTotalVariation,
    field_length,
    gradient,
    solve,
    solve_with_coils,
)

WEIGHT = 2e-3


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
        misfit = coils.encode(image, mask, maps) - coils.keep(kspace, mask)
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


def test_settings_without_a_solution_are_refused() -> None:
    with pytest.raises(ConfigError, match="both must be above zero"):
        SenseTotalVariation(weight=0.0)
