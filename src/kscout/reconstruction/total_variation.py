"""Compressed sensing: minimal total variation subject to the data.

Sparse MRI (Lustig, Donoho and Pauly 2007). Minimizes `|M F x - y|^2 / 2 + weight * TV(x)` over
complex images by the alternating direction method of multipliers (ADMM, Boyd et al. 2011). M is
the column mask, F is the unitary Fourier transform, TV is the sum of the length of the gradient
(isotropic) over all pixels. Differences are periodic, like the discrete Fourier transform, so that
the linear step is a division in k-space, which is exact and fast.

With several coils the objective is `|M F S x - y|^2 / 2 + weight * TV(x)` with the sensitivities
S of `kscout.physics.coils`, solved by the same splitting. The linear step is then no division in
k-space; a few conjugate gradient steps from the present image solve it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.physics.coils import calibrated, combine
from kscout.physics.normalization import EPSILON, magnitude
from kscout.reconstruction.sense import conjugate_gradients, normal, unit_of

OVER_RELAXATION = 1.7
"""Over-relaxation: 1.5 to 1.8 is faster than plain steps (1.0); below 2 it always converges."""

PENALTY_PER_WEIGHT = 30.0
"""For images with maximum 1: a hundred iterations then reduce the duality gap to a thousandth for
weights from 0.0003 to 0.01; values ten times larger or smaller need several times as many."""
N_INNER = 4
"""Conjugate gradient steps per linear step, from the last image; more do not help."""


class Solution(NamedTuple):
    """An image and its certificate: a dual field, which gives a lower bound."""

    image: Complex[Tensor, "image row col"]
    dual: Complex[Tensor, "image 2 row col"]


def gradient(image: Complex[Tensor, "image row col"]) -> Complex[Tensor, "image 2 row col"]:
    """Return the periodic differences to the next row and the next column."""
    differences = [image.roll(-1, dims=axis) - image for axis in (-2, -1)]
    return torch.stack(differences, dim=1)


def gradient_adjoint(field: Complex[Tensor, "image 2 row col"]) -> Complex[Tensor, "image row col"]:
    """Apply the adjoint of `gradient`, the negative divergence."""
    along_rows, along_cols = field.unbind(dim=1)
    return along_rows.roll(1, dims=-2) - along_rows + along_cols.roll(1, dims=-1) - along_cols


def field_length(field: Complex[Tensor, "image 2 row col"]) -> Float[Tensor, "image 1 row col"]:
    """Return the length of the (complex) gradient at each pixel."""
    # Written out, because vector_norm over an axis of two is 40 times slower on a CPU.
    squares = field.real.square() + field.imag.square()
    return (squares[:, :1] + squares[:, 1:]).sqrt()


def laplacian(image: Complex[Tensor, "image row col"]) -> Float[Tensor, "row col"]:
    """Return the eigenvalues of `gradient_adjoint(gradient(.))`, DC first."""

    def one_axis(size: int) -> Float[Tensor, " size"]:
        index = torch.arange(size, dtype=image.real.dtype, device=image.device)
        # 4 sin^2 instead of 2 - 2 cos, which is inaccurate at low frequencies.
        return 4 * (math.pi / size * index).sin().square()

    return one_axis(image.shape[-2])[:, None] + one_axis(image.shape[-1])


def shifted_mask(mask: Bool[Tensor, "image col"]) -> Bool[Tensor, "image 1 col"]:
    """Return the mask with DC first, for multiplication with k-space."""
    # Images stay centered and only the mask moves DC to the front: the remaining phase in
    # k-space is equal in all terms, and two shifts per transform are saved.
    return torch.fft.ifftshift(mask, dim=-1)[:, None, :]


def solve(
    zero_filled: Complex[Tensor, "image row col"],
    mask: Bool[Tensor, "image col"],
    weight: Float[Tensor, " image"],
    *,
    n_iterations: int,
    penalty: float,
) -> Solution:
    """Minimize the primal objective of each image.

    The penalty of the splitting changes the speed, not the solution.
    """
    measured = shifted_mask(mask)
    denominator = measured + penalty * laplacian(zero_filled)
    # Zero only if nothing is known: DC, if its column was not measured. It then stays zero.
    inverse = torch.where(denominator > 0, 1 / denominator, 0)
    data = torch.fft.fft2(zero_filled)

    def linear_step(back: Tensor, _: Tensor) -> Tensor:
        return torch.fft.ifft2((data + penalty * torch.fft.fft2(back)) * inverse)

    threshold = (weight / penalty)[:, None, None, None]
    image, dual = _split(zero_filled, linear_step, threshold, n_iterations)
    return Solution(image, penalty * dual)


def _split(
    start: Complex[Tensor, "image row col"],
    linear_step: Callable[[Tensor, Tensor], Tensor],
    threshold: float | Float[Tensor, "image 1 1 1"],
    n_iterations: int,
) -> tuple[Complex[Tensor, "image row col"], Complex[Tensor, "image 2 row col"]]:
    """Run the splitting; return the images and the scaled dual fields.

    `linear_step` maps the adjoint gradient of the split less the dual field, and the present image,
    to the next image.
    """
    image, split = start, gradient(start)
    dual = torch.zeros_like(split)
    for _ in range(n_iterations):
        image = linear_step(gradient_adjoint(split - dual), image)
        relaxed = OVER_RELAXATION * gradient(image) + (1 - OVER_RELAXATION) * split
        reached = relaxed + dual
        # Shrinkage of the gradient's length by the threshold leaves the projection on its ball.
        dual = reached * (threshold / field_length(reached).clamp(min=threshold))
        split = reached - dual
    return image, dual


def check_weight(weight: float, n_iterations: int) -> None:
    """Raise an error for settings without a solution."""
    if not (weight > 0 and n_iterations > 0):
        raise ConfigError(
            f"total variation with weight = {weight} and n_iterations = {n_iterations} has "
            "no solution; both must be above zero"
        )


@final
class TotalVariation(Reconstructor):
    """Minimal total variation, each coil separately, then the root of the sum of squares.

    Args:
        weight: weight of the total variation relative to the largest magnitude of the zero-filled
            image; 0.001 to 0.005 suit knees and brains, noisier data need more.
        n_iterations: more than 50 do not change SSIM, 300 reach single precision.
    """

    def __init__(self, *, weight: float = 2e-3, n_iterations: int = 50) -> None:
        super().__init__()
        check_weight(weight, n_iterations)
        self.weight = weight
        self.n_iterations = n_iterations

    @torch.no_grad()
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        zero_filled, n_coils = measured.zero_filled, measured.zero_filled.shape[1]
        # Solved in units of the maximum, so that weight and penalty are comparable between images.
        unit = measured.magnitude.amax(dim=(-2, -1)).clamp(min=EPSILON)
        solution = solve(
            (zero_filled / unit[:, None, None, None]).flatten(0, 1),
            measured.mask.repeat_interleave(n_coils, dim=0),
            torch.full_like(unit, self.weight).repeat_interleave(n_coils),
            n_iterations=self.n_iterations,
            penalty=PENALTY_PER_WEIGHT * self.weight,
        )
        coils = solution.image.unflatten(0, (-1, n_coils))
        # Not clamped, unlike a network's input, so that denormalization returns the solution.
        return Reconstruction.of(magnitude(coils) * unit[:, None, None])


def solve_with_coils(
    weighted: Complex[Tensor, "batch row col"],
    mask: Bool[Tensor, "batch col"],
    maps: Complex[Tensor, "batch coil row col"],
    *,
    weight: float,
    n_iterations: int,
) -> Complex[Tensor, "batch row col"]:
    """Minimize the objective of each image.

    `weighted` is A^H y, the zero-filled images weighted by the sensitivities.
    """
    penalty = PENALTY_PER_WEIGHT * weight

    def apply(image: Tensor) -> Tensor:
        return normal(image, mask, maps) + penalty * gradient_adjoint(gradient(image))

    def linear_step(back: Tensor, image: Tensor) -> Tensor:
        return conjugate_gradients(
            apply, weighted + penalty * back, start=image, n_iterations=N_INNER
        )

    return _split(weighted, linear_step, weight / penalty, n_iterations)[0]


@final
class SenseTotalVariation(Reconstructor):
    """Minimal total variation of one image for all coils.

    Args:
        weight: of the total variation, relative to the largest magnitude of the zero-filled image.
        n_iterations: more than 30 do not change SSIM.
    """

    waits_for_device = True

    def __init__(self, *, weight: float = 2e-3, n_iterations: int = 30) -> None:
        super().__init__()
        check_weight(weight, n_iterations)
        self.weight = weight
        self.n_iterations = n_iterations

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"]:
        return calibrated(measured.kspace, measured.mask)

    @torch.no_grad()
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        maps = self.calibrate(measured) if measured.maps is None else measured.maps
        unit = unit_of(measured)
        image = solve_with_coils(
            combine(measured.zero_filled / unit, maps),
            measured.mask,
            maps,
            weight=self.weight,
            n_iterations=self.n_iterations,
        )
        return Reconstruction.of(image.abs() * unit[:, 0])
