"""The transforms of `kscout.physics.fourier` for NumPy arrays, without torch."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Complex64, Inexact
from scipy import fft

BOTH = (-2, -1)
"""Rows and columns."""


def to_kspace(
    images: Inexact[np.ndarray, "*lead row col"], axes: Sequence[int] = BOTH
) -> Complex64[np.ndarray, "*lead row col"]:
    """Transform images to k-space; index `size // 2` of each axis is the center of both."""
    shifted = fft.ifftshift(images.astype(np.complex64, copy=False), axes=axes)
    return fft.fftshift(fft.fftn(shifted, axes=axes, norm="ortho"), axes=axes)


def to_images(
    kspace: Inexact[np.ndarray, "*lead row col"], axes: Sequence[int] = BOTH
) -> Complex64[np.ndarray, "*lead row col"]:
    """Transform k-space to images: the inverse of `to_kspace`."""
    shifted = fft.ifftshift(kspace.astype(np.complex64, copy=False), axes=axes)
    return fft.fftshift(fft.ifftn(shifted, axes=axes, norm="ortho"), axes=axes)


def root_sum_of_squares(
    images: Complex64[np.ndarray, "*lead coil row col"],
) -> Inexact[np.ndarray, "*lead row col"]:
    """Combine coils by the root of the sum of squares."""
    squares = np.square(images.real) + np.square(images.imag)
    return np.sqrt(squares.sum(axis=-3))
