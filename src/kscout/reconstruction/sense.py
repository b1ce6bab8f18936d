"""SENSE: least squares over the k-space of all coils, by conjugate gradients.

Pruessmann et al. 1999 and 2001. With the encoding A = M F S of `kscout.physics.coils` the image
solves (A^H A + regularization) x = A^H y. Since complete columns are measured, transforms along
the rows cancel in A^H A; one transform along the columns remains.
"""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.physics.coils import calibrated, combine, encode_adjoint, expand

TOLERANCE = 1e-6
"""Tolerance of the residual relative to the right-hand side, at which `solve` stops."""
_TINY = 1e-30


def normal(
    image: Complex[Tensor, "*lead row col"],
    mask: Bool[Tensor, "*#lead col"],
    maps: Complex[Tensor, "*lead coil row col"],
) -> Complex[Tensor, "*lead row col"]:
    """Return A^H A x."""
    # The centered transform and the plain one differ by phases that cancel around the mask.
    measured = torch.fft.ifftshift(mask, dim=-1)[..., None, None, :]
    return combine(torch.fft.ifft(torch.fft.fft(expand(image, maps)) * measured), maps)


def solve(
    kspace: Complex[Tensor, "*lead coil row col"],
    mask: Bool[Tensor, "*#lead col"],
    maps: Complex[Tensor, "*lead coil row col"],
    *,
    regularization: float,
    n_iterations: int = 200,
) -> Complex[Tensor, "*lead row col"]:
    """Return the solution of (A^H A + regularization) x = A^H y of each image.

    Args:
        kspace: k-space of all coils; only measured columns are used.
        mask: measured columns.
        maps: sensitivities of unit norm over coils.
        regularization: above zero; the largest eigenvalue of A^H A is at most 1.
        n_iterations: upper limit; fewer if every residual is below `TOLERANCE`.
    """
    check_settings(regularization, n_iterations)
    right = encode_adjoint(kspace, mask, maps)
    return conjugate_gradients(
        lambda image: normal(image, mask, maps) + regularization * image,
        right,
        n_iterations=n_iterations,
        tolerance=TOLERANCE,
    )


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    right: Complex[Tensor, "*lead row col"],
    *,
    start: Complex[Tensor, "*lead row col"] | None = None,
    n_iterations: int,
    tolerance: float = 0.0,
) -> Complex[Tensor, "*lead row col"]:
    """Solve apply(x) = right for all images at once, with separate step sizes.

    Args:
        apply: a positive definite operator on images.
        right: the right-hand side.
        start: initial image; zero by default.
        n_iterations: upper limit.
        tolerance: of the residual; 0 runs all iterations without synchronization.
    """
    found = torch.zeros_like(right) if start is None else start
    residual = right if start is None else right - apply(start)
    direction, energy = residual, _energy(residual)
    goal = tolerance**2 * _energy(right)
    for _ in range(n_iterations):
        if tolerance and bool((energy <= goal).all()):
            break
        applied = apply(direction)
        curvature = (direction.conj() * applied).real.sum(dim=(-2, -1), keepdim=True)
        # A solved image stays constant: both energies are then zero, or rounding errors.
        step = energy / curvature.clamp(min=_TINY)
        found = found + step * direction
        residual = residual - step * applied
        before, energy = energy, _energy(residual)
        direction = residual + energy / before.clamp(min=_TINY) * direction
    return found


def _energy(image: Complex[Tensor, "*lead row col"]) -> Float[Tensor, "*lead 1 1"]:
    return (image.real.square() + image.imag.square()).sum(dim=(-2, -1), keepdim=True)


def check_settings(regularization: float, n_iterations: int) -> None:
    """Raise an error for a problem without a solution, or without iterations."""
    if not (regularization > 0 and n_iterations > 0):
        raise ConfigError(
            f"sense with regularization = {regularization} and n_iterations = {n_iterations} has "
            "no solution; both must be above zero"
        )


def unit_of(measured: Measurement) -> Float[Tensor, "batch 1 1 1"]:
    """Return the largest magnitude of each zero-filled image, 1 for an image of zeros."""
    peak = measured.magnitude.amax(dim=(-2, -1))[:, None, None, None]
    return torch.where(peak > 0, peak, 1)


@final
class Sense(Reconstructor):
    """SENSE with ESPIRiT sensitivities from the central columns.

    Args:
        regularization: relative to the largest eigenvalue of A^H A; noisier data need more.
        n_iterations: conjugate gradient steps; more than the default do not change SSIM.
    """

    waits_for_device = True

    def __init__(self, *, regularization: float = 0.01, n_iterations: int = 30) -> None:
        super().__init__()
        check_settings(regularization, n_iterations)
        self.regularization = regularization
        self.n_iterations = n_iterations

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"]:
        return calibrated(measured.kspace, measured.mask)

    @torch.no_grad()
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        maps = self.calibrate(measured) if measured.maps is None else measured.maps
        unit = unit_of(measured)
        # A fixed number of iterations, so that an image does not depend on its batch.
        image = conjugate_gradients(
            lambda x: normal(x, measured.mask, maps) + self.regularization * x,
            combine(measured.zero_filled / unit, maps),
            n_iterations=self.n_iterations,
        )
        return Reconstruction.of(image.abs() * unit[:, 0])


__all__ = ["Sense", "check_settings", "conjugate_gradients", "normal", "solve", "unit_of"]
