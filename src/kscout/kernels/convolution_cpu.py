"""The functions of `convolution_cpu.c`, for tensors stored channels last.

Winograd's transform of 3x3 weights is linear and small: torch computes it, once for frozen weights.
"""

import ctypes
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.kernels.native import call, count, native_library, over_parts, scratch

LANES = 16
"""Numbers of channels are multiples of this."""
_PANEL = 32
"""Outputs whose weights are adjacent in memory."""


def _functions() -> ctypes.CDLL:
    return native_library("convolution_cpu.c")


@lru_cache(maxsize=4)
def _transform(dtype: torch.dtype) -> Float[Tensor, "36 9"]:
    """Return the matrix from 3x3 weights to 6x6 products, at the points 0, ±1, ±2 and infinity."""
    points = [0.0, 1.0, -1.0, 2.0, -2.0]
    lines = [[1.0, x, x * x] for x in points]
    scales = [4.0, -6.0, -6.0, 24.0, 24.0]
    rows = [[v / scale for v in line] for line, scale in zip(lines, scales, strict=True)]
    one_axis = torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)
    return torch.kron(one_axis, one_axis).to(dtype)


def transform_weights(
    weight: Float[Tensor, "out_channel channel 3 3"],
) -> Float[Tensor, "36 packed"]:
    """Return weights in the layout of `convolve`, computed in the precision of the weights.

    Panels of 32 outputs are consecutive, so that products read memory sequentially.
    """
    n_full = len(weight) // _PANEL * _PANEL
    by_panel = weight.detach().flatten(2)[:n_full].unflatten(0, (-1, _PANEL))
    packed = by_panel.permute(3, 0, 2, 1).reshape(9, -1)
    if n_full < len(weight):
        rest = weight.detach()[n_full:].permute(2, 3, 1, 0).reshape(9, -1)
        packed = torch.cat([packed, rest], dim=1)
    return _transform(weight.dtype) @ packed


def convolve(
    pixels: Float[Tensor, "batch row col channel"],
    weights: Float[Tensor, "36 packed"],
    to: Float[Tensor, "batch row col out_channel"] | None = None,
) -> Float[Tensor, "batch row col out_channel"]:
    """Convolve with transformed 3x3 weights, zeros outside the image; into `to` if given."""
    n, n_rows, n_cols, n_in = pixels.shape
    n_out = weights.shape[1] // n_in
    pixels = pixels.contiguous()
    output = pixels.new_empty(n, n_rows, n_cols, n_out) if to is None else to
    size = count(_functions().convolve_scratch, n_in, n_out)

    def run(begin: int, end: int) -> None:
        shape = (end - begin, n_rows, n_cols, n_in, n_out)
        call(_functions().convolve, pixels[begin], output[begin], weights, scratch(size), *shape)

    over_parts(n, run)
    return output


def weight_gradient(
    pixels: Float[Tensor, "batch row col channel"],
    gradient: Float[Tensor, "batch row col out_channel"],
) -> Float[Tensor, "out_channel channel 3 3"]:
    """Return the gradient of a convolution's weights, from its input and its output's gradient."""
    n, n_rows, n_cols, n_in = pixels.shape
    n_out = gradient.shape[-1]
    pixels, gradient = pixels.contiguous(), gradient.contiguous()
    output = pixels.new_empty(n_out, n_in, 3, 3)
    size = count(_functions().weigh_scratch, n_in, n_out)

    def run(begin: int, end: int) -> None:
        # By output channel, so that sums over images do not depend on the number of threads.
        shape = (n, n_rows, n_cols, n_in, n_out, begin * LANES, end * LANES)
        call(_functions().weigh, pixels, gradient, output, scratch(size), *shape)

    over_parts(n_out // LANES, run)
    return output


def convolve_first(
    image: Float[Tensor, "batch row col"],
    weight: Float[Tensor, "out_channel 1 3 3"],
    to: Float[Tensor, "batch row col out_channel"] | None = None,
) -> Float[Tensor, "batch row col out_channel"]:
    """Convolve images of one channel; into `to` if given."""
    n, n_rows, n_cols = image.shape
    weights = weight.detach().flatten(1).T.contiguous()
    image = image.contiguous()
    output = image.new_empty(n, n_rows, n_cols, len(weight)) if to is None else to

    def run(begin: int, end: int) -> None:
        shape = (end - begin, n_rows, n_cols, len(weight))
        call(_functions().convolve_first, image[begin], output[begin], weights, *shape)

    over_parts(n, run)
    return output


def first_weight_gradient(
    image: Float[Tensor, "batch row col"], gradient: Float[Tensor, "batch row col out_channel"]
) -> Float[Tensor, "out_channel 1 3 3"]:
    """Return the gradient of `convolve_first`'s weights."""
    n, n_rows, n_cols, n_out = gradient.shape
    image, gradient = image.contiguous(), gradient.contiguous()
    output = image.new_empty(n, 9, n_out)

    def run(begin: int, end: int) -> None:
        shape = (end - begin, n_rows, n_cols, n_out)
        call(_functions().weigh_first, image[begin], gradient[begin], output[begin], *shape)

    over_parts(n, run)
    return output.sum(dim=0).T.reshape(n_out, 1, 3, 3)


class NormResults(NamedTuple):
    """Results of instance norm, ReLU and pooling, with the data for the backward pass."""

    output: Float[Tensor, "batch out_row out_col channel"]
    scale: Float[Tensor, "batch channel"]
    shift: Float[Tensor, "batch channel"]

    @classmethod
    def empty(cls, pixels: Float[Tensor, "batch row col channel"], *, pools: bool) -> "NormResults":
        n, n_rows, n_cols, n_channels = pixels.shape
        step = 2 if pools else 1
        output = pixels.new_empty(n, n_rows // step, n_cols // step, n_channels)
        return cls(output, *pixels.new_empty(2, n, n_channels))


def normalize(
    pixels: Float[Tensor, "batch row col channel"], *, pools: bool, to: NormResults | None = None
) -> NormResults:
    """Apply instance norm, ReLU and optional 2x2 max pooling; into `to` if given."""
    n, n_rows, n_cols, n_channels = pixels.shape
    output = NormResults.empty(pixels, pools=pools) if to is None else to

    def run(begin: int, end: int) -> None:
        tensors = (x[begin] for x in (pixels, *output))
        shape = (end - begin, n_rows, n_cols, n_channels, int(pools))
        call(_functions().normalize_forward, *tensors, *shape)

    over_parts(n, run)
    return output


def normalize_backward(
    gradient: Float[Tensor, "batch out_row out_col channel"],
    pixels: Float[Tensor, "batch row col channel"],
    normalized: NormResults,
    *,
    pools: bool,
    in_place: bool = False,
) -> Float[Tensor, "batch row col channel"]:
    """Return the gradient of the input of `normalize`, optionally in the memory of that input."""
    n, n_rows, n_cols, n_channels = pixels.shape
    gradient, result = gradient.contiguous(), pixels if in_place else torch.empty_like(pixels)
    output, scale, shift = normalized

    def run(begin: int, end: int) -> None:
        tensors = (x[begin] for x in (gradient, output, pixels, scale, shift, result))
        shape = (end - begin, n_rows, n_cols, n_channels, int(pools))
        call(_functions().normalize_backward, *tensors, *shape)

    over_parts(n, run)
    return result


def run_unet(
    image: Float[Tensor, "batch row col"],
    weights: Float[Tensor, " weight"],
    *,
    n_channels: int,
    n_pools: int,
    n_at_once: int,
) -> Float[Tensor, "batch row col"]:
    """Apply the paper's U-Net to normalized images.

    Args:
        image: normalized images.
        weights: of all layers in order: [9, channel], transformed ones, and the last [channel + 1].
        n_channels: features of the finest level.
        n_pools: number of poolings.
        n_at_once: images that a thread processes together.
    """
    n, n_rows, n_cols = image.shape
    image, output = (
        image.contiguous(),
        torch.empty_like(image, memory_format=torch.contiguous_format),
    )
    n_most = min(n_at_once, max(1, n))
    size = count(_functions().unet_scratch, n_most, n_rows, n_cols, n_channels, n_pools)

    def run(begin: int, end: int) -> None:
        for first in range(begin, end, n_most):
            shape = (min(n_most, end - first), n_rows, n_cols, n_channels, n_pools)
            call(_functions().unet, image[first], output[first], weights, scratch(size), *shape)

    over_parts(n, run)
    return output
