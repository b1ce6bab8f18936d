"""Normalization of each image to zero mean and unit standard deviation.

As in arXiv 2010.16262 (appendix A) and fastMRI (arXiv 1811.08839): z = (x - mean) / (std + 1e-11),
clamped to [-6, 6].
"""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

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
