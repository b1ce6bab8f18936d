"""Compressed sensing of several coils: one image of least total variation explains them all.

Minimizes `|M F S x - y|^2 / 2 + weight * TV(x)` with the sensitivities S of `kscout.physics.coils`,
by the same splitting as `total_variation`. Sensitivities keep the linear step from being a
division in k-space: a few conjugate gradients from the image so far take its place.
"""

from typing import final

import torch
from jaxtyping import Bool, Complex
from torch import Tensor

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.physics.coils import calibrated, combine
from kscout.reconstruction.sense import conjugate_gradients, normal, unit_of
from kscout.reconstruction.total_variation import (
    OVER_RELAXATION,
    PENALTY_PER_WEIGHT,
    check_weight,
    field_length,
    gradient,
    gradient_adjoint,
)

N_INNER = 4
"""Conjugate gradients of each linear step; with the last image as the start, more gain nothing."""


def solve_with_coils(
    weighted: Complex[Tensor, "batch row col"],
    mask: Bool[Tensor, "batch col"],
    maps: Complex[Tensor, "batch coil row col"],
    *,
    weight: float,
    n_iterations: int,
) -> Complex[Tensor, "batch row col"]:
    """Minimize the objective of each image.

    Args:
        weighted: A^H y, the zero-filled images weighted by the sensitivities.
        mask: measured columns.
        maps: sensitivities of unit norm over coils.
        weight: of the total variation, in units of the image.
        n_iterations: each costs a few transforms of every coil.
    """
    penalty = PENALTY_PER_WEIGHT * weight
    threshold = weight / penalty

    def apply(image: Tensor) -> Tensor:
        return normal(image, mask, maps) + penalty * gradient_adjoint(gradient(image))

    image, split = weighted, gradient(weighted)
    dual = torch.zeros_like(split)
    for _ in range(n_iterations):
        right = weighted + penalty * gradient_adjoint(split - dual)
        image = conjugate_gradients(apply, right, start=image, n_iterations=N_INNER)
        relaxed = OVER_RELAXATION * gradient(image) + (1 - OVER_RELAXATION) * split
        reached = relaxed + dual
        dual = reached * (threshold / field_length(reached).clamp(min=threshold))
        split = reached - dual
    return image


@final
class SenseTotalVariation(Reconstructor):
    """Least total variation of one image behind all coils.

    Args:
        weight: of the total variation, relative to the largest magnitude of the zero-filled image.
        n_iterations: 30 are past what SSIM can see.
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
