"""Centered orthonormal Fourier transforms over the last two axes (row, col)."""

from functools import lru_cache

import torch
from jaxtyping import Complex, Inexact
from torch import Tensor


def fft2c(image: Inexact[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Transform an image to k-space, with DC at index `size // 2` of both axes."""
    shifted = torch.fft.ifftshift(image, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.fft2(shifted, norm="ortho"), dim=(-2, -1))


def ifft2c(kspace: Complex[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Transform k-space to an image: the inverse and the adjoint of `fft2c`."""
    shifted = torch.fft.ifftshift(kspace, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=(-2, -1))


def ifft_rows(kspace: Complex[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Transform along the rows axis only: what each column adds to an image, before its ramp."""
    shifted = torch.fft.ifftshift(kspace, dim=-2)
    return torch.fft.fftshift(torch.fft.ifft(shifted, dim=-2, norm="ortho"), dim=-2)


@lru_cache(maxsize=32)
def column_ramps(n_cols: int, device: torch.device | str = "cpu") -> Complex[Tensor, "column col"]:
    """Return for each k-space column the phase ramp that it spreads over the image's columns.

    The result is shared between calls: do not change it.
    """
    identity = torch.eye(n_cols, dtype=torch.complex128)
    shifted = torch.fft.ifftshift(identity, dim=-1)
    ramps = torch.fft.fftshift(torch.fft.ifft(shifted, dim=-1, norm="ortho"), dim=-1)
    return ramps.to(torch.complex64).to(device)
