"""The unit of k-space: one scale and one constant phase that all its samples have in common."""

import cmath
import math

import torch
from jaxtyping import Complex
from torch import Tensor

from kscout.physics.fourier import ifft2c

_MOST_DOUBLINGS = 100
"""Of a scale: its reciprocal stays within float32."""
_LEAST_SHARE = 1e-3
"""Share of the energy below which a sum of squares is mostly rounding."""
_ROUNDING = 1e-4
"""Angles below this are rounding."""


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
