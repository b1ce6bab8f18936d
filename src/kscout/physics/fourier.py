"""Centered orthonormal discrete Fourier transforms over the last two axes (row, col).

With R rows and C columns, coordinates r, c and frequencies u, v counted from the center
(index `size // 2` is 0),

    y[u, v] = 1 / sqrt(R C) * sum over r, c of x[r, c] exp(-2 pi i (u r / R + v c / C)).

The transform F is unitary: its inverse is its adjoint, and it preserves norms.
"""

from functools import lru_cache

import torch
from jaxtyping import Bool, Complex, Float, Inexact, Int, Shaped
from torch import Tensor


def fft2c(image: Inexact[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Transform an image to k-space, y = F x; DC is at index `size // 2` of both axes."""
    shifted = torch.fft.ifftshift(image, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.fft2(shifted, norm="ortho"), dim=(-2, -1))


def ifft2c(kspace: Complex[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Transform k-space to an image, x = F^-1 y: the inverse and the adjoint of `fft2c`."""
    shifted = torch.fft.ifftshift(kspace, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=(-2, -1))


def ifft_rows(kspace: Complex[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Apply the inverse transform along the row axis only.

    Column v of the result, times the phase ramp of `column_ramps`, is what k-space column v adds
    to the image: ifft2c(y)[r, c] = sum over v of ifft_rows(y)[r, v] * column_ramps[v, c].
    """
    shifted = torch.fft.ifftshift(kspace, dim=-2)
    return torch.fft.fftshift(torch.fft.ifft(shifted, dim=-2, norm="ortho"), dim=-2)


@lru_cache(maxsize=32)
def column_ramps(n_cols: int, device: torch.device | str = "cpu") -> Complex[Tensor, "column col"]:
    """Return the phase ramp of each k-space column v, exp(2 pi i v c / C) / sqrt(C).

    The result is cached and shared between calls: do not modify it.
    """
    identity = torch.eye(n_cols, dtype=torch.complex128)
    shifted = torch.fft.ifftshift(identity, dim=-1)
    ramps = torch.fft.fftshift(torch.fft.ifft(shifted, dim=-1, norm="ortho"), dim=-1)
    return ramps.to(torch.complex64).to(device)


def frequencies(n: int, device: torch.device) -> Float[Tensor, " n"]:
    """Return n centered frequencies, in cycles per field of view."""
    return (torch.arange(n, device=device) - n // 2).float()


def opposite(n: int, device: torch.device) -> Int[Tensor, " n"]:
    """Return the index of the opposite of each of n centered frequencies.

    K-space of a real image is the complex conjugate of itself at opposite frequencies.
    """
    return (2 * (n // 2) - torch.arange(n, device=device)) % n


def at_opposite(values: Shaped[Tensor, "*batch row col"]) -> Shaped[Tensor, "*batch row col"]:
    """Return the values at opposite frequencies."""
    rows, cols = (opposite(n, values.device) for n in values.shape[-2:])
    return values[..., rows, :][..., cols]


def conjugate_mirror(
    kspace: Complex[Tensor, "*batch row col"],
) -> Complex[Tensor, "*batch row col"]:
    """Return the complex conjugate at opposite frequencies: for a real image k-space itself."""
    return at_opposite(kspace).conj()


def completed(
    kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
) -> tuple[Complex[Tensor, "batch coil row col"], Bool[Tensor, "batch col"]]:
    """Return k-space of real images with opposites of measured columns filled in, and its mask."""
    is_known = mask | mask[:, opposite(mask.shape[1], mask.device)]
    filled = torch.where(mask[:, None, None], kspace, conjugate_mirror(kspace))
    return filled * is_known[:, None, None], is_known
