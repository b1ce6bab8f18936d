"""Normalization of each image to zero mean and unit standard deviation.

As in arXiv 2010.16262 (appendix A) and fastMRI (arXiv 1811.08839): z = (x - mean) / (std + 1e-11),
clamped to [-6, 6].
"""

import cmath
import math
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from kscout.physics.fourier import ifft2c

_MOST_DOUBLINGS = 100
"""Of a scale: its reciprocal stays within float32."""
_LEAST_SHARE = 1e-3
"""Share of the energy below which a sum of squares is mostly rounding."""
_ROUNDING = 1e-4
"""Angles below this are rounding."""


CLAMP = 6.0
EPSILON = 1e-11


class Normalized(NamedTuple):
    """An image in normalized units and the statistics that undo the normalization."""

    image: Float[Tensor, "*lead row col"]
    mean: Float[Tensor, "*lead"]
    std: Float[Tensor, "*lead"]


def statistics(
    image: Float[Tensor, "*lead row col"],
) -> tuple[Float[Tensor, "*lead"], Float[Tensor, "*lead"]]:
    """Return the mean and the unbiased standard deviation (divisor n - 1) of each image."""
    std, mean = torch.std_mean(image, dim=(-2, -1), correction=1)
    return mean, std


def normalize(image: Float[Tensor, "*lead row col"]) -> Normalized:
    """Normalize each image by its own mean and deviation, clamped to ±6."""
    mean, std = statistics(image)
    return Normalized(normalize_with(image, mean, std), mean, std)


def normalize_with(
    image: Float[Tensor, "*lead row col"], mean: Float[Tensor, "*lead"], std: Float[Tensor, "*lead"]
) -> Float[Tensor, "*lead row col"]:
    """Normalize each image by given statistics, clamped to ±6."""
    scaled = (image - mean[..., None, None]) / (std[..., None, None] + EPSILON)
    return scaled.clamp(-CLAMP, CLAMP)


def denormalize(
    image: Float[Tensor, "*lead row col"], mean: Float[Tensor, "*lead"], std: Float[Tensor, "*lead"]
) -> Float[Tensor, "*lead row col"]:
    """Return image * std + mean; values that were clamped by `normalize` stay clamped."""
    return image * std[..., None, None] + mean[..., None, None]


def magnitude(image: Complex[Tensor, "*batch coil row col"]) -> Float[Tensor, "*batch row col"]:
    """Combine coils by the root of the sum of squares, sqrt(sum over coils of |x|^2).

    Where an image is exactly zero its gradient is zero, as that of abs(), and not undefined.
    """
    if image.shape[-3] == 1:
        return image[..., 0, :, :].abs()
    energy = image.abs().square().sum(dim=-3)
    if not energy.requires_grad:
        return energy.sqrt()
    is_dark = energy == 0
    return energy.masked_fill(is_dark, 1.0).sqrt().masked_fill(is_dark, 0.0)


def unit_of_kspace(kspace: Complex[Tensor, "coil row col"]) -> complex:
    """Estimate the unit u of k-space y: its scale, and the phase that its images have in common.

    Of the coil images x = F^-1 y, |u| is the power of two nearest to the root mean square of the
    combined image, so a division by |u| is exact. The phase is that of the root of sum x^2 which
    is nearer to the phase of the largest sample. As sum x^2 = sum y(k) y(-k), columns without
    their opposite add nothing: the phase of positive images is 0 for any columns around the
    center. If no opposite is measured, the phase is that of the largest sample.

    Returns:
        The unit; 1 for k-space of zeros.
    """
    energy = float(torch.linalg.vector_norm(kspace, dtype=torch.complex128)) ** 2
    if energy == 0:
        return 1 + 0j
    doublings = round(math.log2(energy / (kspace.shape[-2] * kspace.shape[-1])) / 2)
    scale = 2.0 ** max(-_MOST_DOUBLINGS, min(doublings, _MOST_DOUBLINGS))
    squares = complex(ifft2c(kspace / scale).square().sum(dtype=torch.complex128))
    largest = complex(kspace.flatten()[kspace.abs().argmax()])
    phase = cmath.phase(largest)
    if abs(squares) * scale**2 > _LEAST_SHARE * energy:
        half = cmath.phase(squares) / 2
        phase = half if (cmath.rect(1, -half) * largest).real >= 0 else half + math.pi
    return cmath.rect(scale, 0.0 if abs(phase) < _ROUNDING else phase)
