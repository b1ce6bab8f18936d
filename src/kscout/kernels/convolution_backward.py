"""Gradients of 3x3 convolutions with instance norm, ReLU and pooling, in 16 bit on CUDA.

`convolution_backward.cu` describes the algorithm. Sums are in 32 bit and in a fixed order.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.kernels.convolution import Features, packed_order
from kscout.kernels.cuda import compile_kernel
from kscout.kernels.registry import n_products, strip_width, thin_bytes

FILE = "convolution_backward.cu"
LAYERS = "convolution_backward_layers.cu"
THIN = "convolution_backward_thin.cu"
_THREADS = 256
_AT_ONCE = 2
"""Blocks of plain convolutions per multiprocessor."""
_TASKS_THREADS = 512
"""Threads of kernels whose warps have different tasks: one block fills a multiprocessor."""


@final
@dataclass(frozen=True)
class Flow:
    """The gradient of a layer's final output, after norm, ReLU and pooling."""

    gradient: Float[Tensor, "image row col channel"]
    sums: Float[Tensor, "image part channel 2"]
    """Sums of the gradient after the ReLU, and of its product with the normalized value."""


@final
@dataclass(frozen=True)
class Before:
    """The input of a convolution: the pooled values of the previous layer, and their norms."""

    values: Float[Tensor, "image row col channel"]
    norms: Float[Tensor, "image channel 2"]


@final
class NormBackward:
    """Backward pass of instance norm and ReLU after one convolution."""

    def __init__(self, n_channels: int, n_pixels: int) -> None:
        self.n_channels, self.n_pixels = n_channels, n_pixels
        self.finish_norms = compile_kernel(FILE, "finish_norms", n_channels)
        self.finish_sums = compile_kernel(FILE, "finish_sums", n_channels)

    def norms(self, features: Features) -> Float[Tensor, "image channel 2"]:
        """Return scale and shift of the norm."""
        n = len(features.values)
        norms = torch.empty(n, self.n_channels, 2, device=features.values.device)
        arguments = [features.sums, features.n_tiles, self.n_pixels, norms]
        self.finish_norms((n, 1, 1), (self.n_channels, 1, 1), arguments)
        return norms

    def factors(self, norms: Tensor, flow: Flow) -> Float[Tensor, "image channel 4"]:
        """Return the factors of values and gradients in the derivative of the output."""
        n, n_parts = flow.sums.shape[:2]
        factors = torch.empty(n, self.n_channels, 4, device=norms.device)
        arguments = [flow.sums, n_parts, self.n_pixels, norms, factors]
        self.finish_sums((n, 1, 1), (_THREADS, 1, 1), arguments)
        return factors


@final
class LastSums:
    """Gradient sums for the last layer's norm; other layers compute them with their gradients."""

    def __init__(self, n_channels: int, n_rows: int, n_cols: int) -> None:
        self.shape = (n_rows, n_cols, n_channels)
        self.n_parts = min(8, max(1, n_rows * n_cols * n_channels // 8 // _THREADS // 16))
        self.kernel = compile_kernel(FILE, "gradient_sums", *self.shape)

    def __call__(self, features: Features, norms: Tensor, gradient: Tensor) -> Flow:
        """Return the gradient of the pooled output, of any shape, with its sums."""
        n = len(gradient)
        sums = torch.empty(n, self.n_parts, self.shape[2], 2, device=gradient.device)
        grid, block = (self.n_parts, n, 1), (_THREADS, 1, 1)
        self.kernel(grid, block, [features.read, norms, gradient, sums])
        return Flow(gradient.view(n, *self.shape), sums)


@final
class FirstBackward:
    """The backward pass of a first layer, whose input is images, and which does not pool."""

    def __init__(self, n_out: int, n_rows: int, n_cols: int, device: torch.device) -> None:
        self.n_out = n_out
        self.norm = NormBackward(n_out, n_rows * n_cols)
        tile = (min(n_rows, 8 if n_out <= 32 else 4), min(n_cols, 32))
        sizes = (n_rows, n_cols, n_out, *tile)
        n_tile = tile[0] * tile[1] * (2 * n_out + 16) + 2 * (tile[0] + 2) * (tile[1] + 2)
        # Finally the same memory contains the results of eight warps.
        self.n_bytes = max(n_tile, 8 * n_out * 16 * 4)
        kernel = (FILE, "first_weight_gradients", *sizes)
        self.kernel = compile_kernel(*kernel, n_bytes=self.n_bytes)
        self.n_workers = 4 * _n_processors(device)

    def __call__(
        self, image: Float[Tensor, "image row col"], features: Features, norms: Tensor, flow: Flow
    ) -> Float[Tensor, "out 1 3 3"]:
        """Return the gradient of the weights."""
        factors = self.norm.factors(norms, flow)
        sums = torch.empty(self.n_workers, self.n_out, 16, device=image.device)
        arguments = [image, features.values, factors, flow.gradient, sums, len(image)]
        self.kernel((self.n_workers, 1, 1), (_THREADS, 1, 1), arguments, self.n_bytes)
        return sums.sum(dim=0)[:, :9].reshape(self.n_out, 1, 3, 3)


@final
class ConvolutionBackward:
    """The backward pass of one convolution and of the norm, ReLU and pooling after it."""

    def __init__(
        self, n_out: int, n_in: int, n_rows: int, n_cols: int, device: torch.device
    ) -> None:
        assert n_out == 2 * n_in
        self.n_out, self.n_in, self.shape = n_out, n_in, (n_rows, n_cols)
        self.norm = NormBackward(n_out, n_rows * n_cols)
        self.n_processors = _n_processors(device)
        self.n_blocks = _AT_ONCE * self.n_processors
        self.add_workers = compile_kernel(FILE, "add_workers", n_out, n_in)
        self.is_thin = n_in == 16
        if self.is_thin:
            self._prepare_thin()
        else:
            self._prepare_weights()
            self._prepare_plain()

    def _prepare_thin(self) -> None:
        """Build the kernel that computes all at once, in strips of an image."""
        n_rows, n_cols = self.shape
        width, self.thin_bytes = strip_width(n_cols), thin_bytes(n_cols)
        kernel = (THIN, "differentiate_thin", *self.shape, width)
        self.thin = compile_kernel(*kernel, n_bytes=self.thin_bytes)
        self.thin_parts = (n_rows // 4 + 1) * (n_cols // width) * n_products(width)

    def _prepare_weights(self) -> None:
        n_rows, n_cols = min(self.shape[0], 8), min(self.shape[1], 16)
        # Blocks that share output channels compute the same derivatives, so they get many inputs.
        n_out, n_in = (32, 64) if self.n_in >= 64 else (64, 32)
        arguments = (*self.shape, self.n_in, self.n_out, n_rows, n_cols, n_out, n_in)
        n_pixels, n_around = n_rows * n_cols, (n_rows + 2) * (n_cols + 2)
        self.weights_bytes = 2 * (n_around * (n_in * 2 + 16) + n_pixels * (n_out * 2 + 16))
        kernel = (LAYERS, "weight_gradients", *arguments)
        self.weights = compile_kernel(*kernel, n_bytes=self.weights_bytes)
        self.weights_parts = (self.n_out // n_out, self.n_in // n_in)

    def _prepare_plain(self) -> None:
        n_rows, n_cols = min(self.shape[0], 16), min(self.shape[1], 32)
        n_products = n_rows * n_cols // 16
        warps_m = n_products // 4
        # Eight warps per block, if there are enough channels for few pixels.
        warps_n = 2 if warps_m < 8 and self.n_in >= 64 else 1
        sizes = (*self.shape, self.n_out, self.n_in, n_rows, n_cols, warps_m, warps_n)
        n_around = (n_rows + 2) * (n_cols + 2)
        self.plain_bytes = 2 * (n_around * 48 + 9 * 16 * 2 * 32 * warps_n)
        self.plain = compile_kernel(LAYERS, "convolve_plain", *sizes, n_bytes=self.plain_bytes)
        n_tiles = self.shape[0] * self.shape[1] // (n_rows * n_cols)
        self.plain_block, self.plain_parts = 32 * warps_m * warps_n, n_tiles * warps_m
        self.plain_split = self.n_in // (32 * warps_n)

    def __call__(
        self, features: Features, norms: Tensor, flow: Flow, before: Before, weight: Tensor
    ) -> tuple[Float[Tensor, "out in 3 3"], Flow]:
        """Return the gradients of the weights and of the convolution's input.

        The weight of the convolution is in `backward_order`.
        """
        factors = self.norm.factors(norms, flow)
        if self.is_thin:
            return self._differentiate_thin(features, factors, flow, before, weight)
        sums, derivative = self._to_weight(features, factors, flow, before)
        return sums, self._to_input(before, derivative, weight)

    def _differentiate_thin(
        self, features: Features, factors: Tensor, flow: Flow, before: Before, weight: Tensor
    ) -> tuple[Tensor, Flow]:
        shape = (2 * self.n_processors, 9, self.n_out, self.n_in)
        sums = weight.new_empty(shape, dtype=torch.float32)
        back = self._allocate(before, self.thin_parts)
        arguments = [
            *(features.values, flow.gradient, factors, weight, before.values, before.norms),
            *(back.gradient, back.sums, sums, len(features.values)),
        ]
        self.thin((self.n_processors, 1, 1), (_TASKS_THREADS, 1, 1), arguments, self.thin_bytes)
        return self._total(sums), back

    def _to_weight(
        self, features: Features, factors: Tensor, flow: Flow, before: Before
    ) -> tuple[Float[Tensor, "out in 3 3"], Float[Tensor, "image row col out"]]:
        """Return the gradient of the weights and the derivative of the convolution's output."""
        n_out, n_in = self.weights_parts
        n_workers = max(1, self.n_processors // (n_out * n_in))
        sums = torch.empty(n_workers, 9, self.n_out, self.n_in, device=factors.device)
        derivative = torch.empty_like(features.values)
        arguments = [
            *(features.values, factors, flow.gradient, before.values, before.norms),
            *(derivative, sums, len(derivative)),
        ]
        grid = (n_workers, n_out, n_in)
        self.weights(grid, (_TASKS_THREADS, 1, 1), arguments, self.weights_bytes)
        return self._total(sums), derivative

    def _to_input(self, before: Before, derivative: Tensor, weight: Tensor) -> Flow:
        back = self._allocate(before, self.plain_parts)
        grid = (max(1, self.n_blocks // self.plain_split), self.plain_split, 1)
        arguments = [
            *(derivative, weight, before.values, before.norms),
            *(back.gradient, back.sums, len(derivative)),
        ]
        self.plain(grid, (self.plain_block, 1, 1), arguments, self.plain_bytes)
        return back

    def _allocate(self, before: Before, n_parts: int) -> Flow:
        shape = (len(before.values), n_parts, self.n_in, 2)
        sums = torch.empty(shape, device=before.values.device)
        return Flow(torch.empty_like(before.values), sums)

    def _total(self, sums: Tensor) -> Float[Tensor, "out in 3 3"]:
        total = sums.new_empty(self.n_out, self.n_in, 3, 3)
        grid = (total.numel() // 128, 1, 1)
        self.add_workers(grid, (_THREADS, 1, 1), [sums, len(sums), total])
        return total


def _n_processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def backward_order(n_out: int, n_in: int) -> Tensor:
    """Return the index of each weight of `ConvolutionBackward`, counted from 1; 0 means none.

    It is the packed order of the transposed weight, taps reversed.
    """
    place = torch.arange(1, n_out * n_in * 9 + 1).view(n_out, n_in, 9)
    transposed = place.flip(2).transpose(0, 1).reshape(-1)
    return torch.cat([transposed.new_zeros(1), transposed])[packed_order(n_in, n_out)]
