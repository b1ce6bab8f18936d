"""Gradients of 3x3 convolutions with instance norm, ReLU and pooling, in 16 bit on CUDA.

`convolution_backward.cu` says how. Sums are in 32 bit and in a fixed order.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.kernels import compile_kernel
from kscout.kernels.convolution import Features, Tiling, packed_order

FILE = "convolution_backward.cu"
_THREADS = 256


@final
class ConvolutionBackward:
    """The backward pass of one convolution and of the norm, ReLU and pooling after it.

    Args:
        n_out: its output channels.
        n_in: its input channels; one for a first layer, which reads images.
        n_rows: rows of its output before pooling.
        n_cols: columns of its output before pooling.
        pools: whether 2x2 pooling comes after.
        device: a CUDA device.
    """

    def __init__(
        self,
        n_out: int,
        n_in: int,
        n_rows: int,
        n_cols: int,
        *,
        pools: bool,
        device: torch.device,
    ) -> None:
        self.n_out, self.n_in, self.shape = n_out, n_in, (n_rows, n_cols)
        n_processors = torch.cuda.get_device_properties(device).multi_processor_count
        n_steps = n_rows * n_cols // (4 if pools else 1) * n_out // 8 // _THREADS
        self.n_parts = min(8, max(1, n_steps // 16))
        sizes = (n_rows, n_cols, n_out)
        self.finish_norms = compile_kernel(FILE, "finish_norms", n_out)
        pooled = (n_rows // 2, n_cols // 2) if pools else (n_rows, n_cols)
        self.gradient_sums = compile_kernel(FILE, "gradient_sums", *pooled, n_out)
        self.through_norm = compile_kernel(FILE, "through_norm", *sizes, int(pools))
        tile = (min(n_rows, 8 if n_cols >= 32 else 16), min(n_cols, 32))
        n_pixels, n_around = tile[0] * tile[1], (tile[0] + 2) * (tile[1] + 2)
        if n_in == 1:
            name = "first_weight_gradients"
            arguments: tuple[int, ...] = (*sizes, *tile)
            self.block, self.parts, self.n_workers = 256, (1, 1), 4 * n_processors
            self.n_bytes = n_pixels * (2 * n_out + 16) + 2 * n_around
            self.weight_shape: tuple[int, ...] = (n_out, 16)
        else:
            own = (min(64, n_out), min(32, n_in))
            name = "weight_gradients"
            arguments = (n_rows, n_cols, n_in, n_out, *tile, *own)
            self.block, self.parts = 288, (n_out // own[0], n_in // own[1])
            at_once = 2 if own[0] * own[1] >= 1024 else 3
            self.n_workers = max(1, at_once * n_processors // (self.parts[0] * self.parts[1]))
            self.n_bytes = n_pixels * (2 * own[0] + 16) + n_around * (2 * own[1] + 16) + 4 * own[1]
            self.weight_shape = (9, n_out, n_in)
            self._prepare_plain(n_rows, n_cols)
        self.weight_gradients = compile_kernel(FILE, name, *arguments)
        self.weight_gradients.set_shared_memory_config(self.n_bytes)

    def _prepare_plain(self, n_rows: int, n_cols: int) -> None:
        """Build the convolution that takes derivatives from the output to the input."""
        tiling = Tiling.of(n_rows, n_cols, min(self.n_out, 64), self.n_in)
        n_warps = tiling.warps_m * tiling.warps_n
        arguments = (n_rows, n_cols, self.n_out, self.n_in, tiling.n_rows, tiling.n_cols)
        self.plain = compile_kernel(
            FILE, "convolve_plain", *arguments, tiling.warps_m, tiling.warps_n, tiling.parts
        )
        n_around = (tiling.n_rows + 2) * (tiling.n_cols + 2)
        self.plain_bytes = n_around * (min(self.n_out, 64) * 2 + 16)
        self.plain.set_shared_memory_config(self.plain_bytes)
        n_tiles = n_rows * n_cols // (tiling.n_rows * tiling.n_cols)
        self.plain_grid, self.plain_block = (n_tiles, tiling.parts), 32 * n_warps

    def norms(self, features: Features) -> Float[Tensor, "image channel 2"]:
        """Return scale and shift of the norm."""
        n = len(features.values)
        norms = torch.empty(n, self.n_out, 2, device=features.values.device)
        n_pixels = self.shape[0] * self.shape[1]
        arguments = [features.sums, features.n_tiles, n_pixels, norms]
        self.finish_norms((n, 1, 1), (self.n_out, 1, 1), arguments)
        return norms

    def to_output(
        self, features: Features, norms: Tensor, gradient: Float[Tensor, "image row col channel"]
    ) -> Float[Tensor, "image row_ col_ channel"]:
        """Take a gradient back through pooling, ReLU and norm."""
        values = features.values
        n = len(values)
        sums = torch.empty(n, self.n_parts, self.n_out, 2, device=values.device)
        grid, block = (self.n_parts, n, 1), (_THREADS, 1, 1)
        self.gradient_sums(grid, block, [features.read, norms, gradient, sums])
        derivative = torch.empty_like(values)
        arguments = [values, norms, gradient, sums, self.n_parts, derivative]
        self.through_norm(grid, block, arguments)
        return derivative

    def to_weight(
        self, source: Tensor, norms: Tensor | None, derivative: Tensor
    ) -> Float[Tensor, "out in 3 3"]:
        """Return the weight's gradient.

        Args:
            source: what the convolution read: the layer before's values, pooled, or images.
            norms: the layer before's; none for images.
            derivative: by this convolution's output.
        """
        n = len(derivative)
        found = torch.empty(self.n_workers, *self.weight_shape, device=derivative.device)
        given = [source] if norms is None else [source, norms]
        arguments = [*given, derivative, found, n]
        grid = (self.n_workers, *self.parts)
        self.weight_gradients(grid, (self.block, 1, 1), arguments, self.n_bytes)
        total = found.sum(dim=0)
        if norms is None:
            return total[:, :9].reshape(self.n_out, 1, 3, 3)
        return total.view(3, 3, self.n_out, self.n_in).permute(2, 3, 0, 1)

    def to_input(
        self, derivative: Tensor, weight: Tensor
    ) -> Float[Tensor, "image row col channel"]:
        """Take a derivative back through the convolution; `weight` in `backward_order`."""
        n = len(derivative)
        out = torch.empty(n, *self.shape, self.n_in, dtype=torch.half, device=derivative.device)
        n_tiles, n_parts = self.plain_grid
        grid, block = (n_tiles, n, n_parts), (self.plain_block, 1, 1)
        self.plain(grid, block, [derivative, weight, out], self.plain_bytes)
        return out


def backward_order(n_out: int, n_in: int) -> Tensor:
    """Return where `to_input` finds a weight [out, in, 3, 3], counted from 1; 0 stands for none.

    It is the packed order of the transposed weight, taps reversed.
    """
    place = torch.arange(1, n_out * n_in * 9 + 1).view(n_out, n_in, 9)
    transposed = place.flip(2).transpose(0, 1).reshape(-1)
    return torch.cat([transposed.new_zeros(1), transposed])[packed_order(n_in, n_out)]
