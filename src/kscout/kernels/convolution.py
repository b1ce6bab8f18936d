"""3x3 convolutions in 16 bit on CUDA that finish the instance norm of what they read.

`convolution.cu` says how. Values lie as [image, row, col, channel], before the norm.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.kernels import compile_kernel

FILE = "convolution.cu"
_MODES = {"same": 0, "pool": 1, "up": 2}


@final
@dataclass(frozen=True)
class Tiling:
    """How one convolution is divided among blocks and warps."""

    n_rows: int
    n_cols: int
    warps_m: int
    warps_n: int
    parts: int
    """Blocks that share the output channels of one tile."""

    @classmethod
    def of(cls, n_rows: int, n_cols: int, n_in: int, n_out: int) -> "Tiling":
        """Choose a tile that keeps sums in registers and several blocks on a multiprocessor."""
        width, parts = min(n_cols, 32), max(1, n_out // 64)
        n_part = n_out // parts
        is_thin = n_in <= 32 and n_part <= 32
        height = min(n_rows, 16 if is_thin or width < 32 else 8)
        n_products = height * width // 16
        if n_products >= 32:
            return cls(height, width, 8, 1, parts)
        warps_m = 4 if n_products >= 8 else max(1, n_products // 2)
        return cls(height, width, warps_m, max(1, min(8 // warps_m, n_part // 16)), parts)


@final
@dataclass(frozen=True)
class Features:
    """What one convolution leaves: values before the norm, and their sums per tile."""

    values: Tensor
    sums: Tensor
    n_tiles: int


class Input(NamedTuple):
    """Images of 32 bit and what normalizes them."""

    image: Tensor
    mean: Tensor
    std: Tensor


@final
class Convolution:
    """One compiled 3x3 convolution for one size.

    Args:
        weight: [out, in, 3, 3]; one input channel makes a first layer, which reads images.
        mode: size of what is read: `same`, `pool` (twice) or `up` (half).
        n_rows: rows of the output.
        n_cols: columns of the output.
        n_skip: input channels that come from a second tensor of the output's size.
        clamps: whether a first layer clamps normalized images to six deviations.
    """

    def __init__(
        self,
        weight: Float[Tensor, "out in 3 3"],
        mode: str,
        n_rows: int,
        n_cols: int,
        *,
        n_skip: int = 0,
        clamps: bool = False,
    ) -> None:
        n_out, n_in = weight.shape[:2]
        n_main = n_in - n_skip
        tiling = Tiling.of(n_rows, n_cols, min(n_main, 64), n_out)
        sizes = (tiling.n_rows, tiling.n_cols, tiling.warps_m)
        self.shape, self.n_out, self.tiling = (n_rows, n_cols), n_out, tiling
        self.n_tiles = n_rows * n_cols // (tiling.n_rows * tiling.n_cols)
        self.n_threads = 32 * tiling.warps_m * tiling.warps_n
        if n_in == 1:
            arguments: tuple[int, ...] = (n_rows, n_cols, n_out, *sizes, int(clamps))
            self.kernel, self.n_bytes = compile_kernel(FILE, "convolve_first", *arguments), 0
        else:
            layers = (n_rows, n_cols, n_main, _MODES[mode], n_skip, n_out)
            arguments = (*layers, *sizes, tiling.warps_n, tiling.parts)
            n_pixels = (tiling.n_rows + 2) * (tiling.n_cols + 2)
            n_norms = n_in + max(n_in, self.n_threads)
            self.n_bytes = n_pixels * (min(n_main, 64) * 2 + 16) + n_norms * 8
            self.kernel = compile_kernel(FILE, "convolve", *arguments)
            self.kernel.set_shared_memory_config(self.n_bytes)
        self.order = packed_order(n_out, n_in).to(weight.device)
        self.weight = torch.empty(self.order.shape, dtype=torch.half, device=weight.device)
        self.set_weight(weight)

    def set_weight(self, weight: Float[Tensor, "out in 3 3"]) -> None:
        """Take other weights, in place: a CUDA graph that uses them sees the change."""
        values = weight.detach().reshape(-1)
        self.weight.copy_(torch.cat([values.new_zeros(1), values])[self.order])

    def allocate(self, n_images: int) -> Features:
        """Reserve what this convolution writes."""
        device = self.weight.device
        values = torch.empty(n_images, *self.shape, self.n_out, dtype=torch.half, device=device)
        sums = torch.empty(n_images, self.n_tiles, self.n_out, 2, device=device)
        return Features(values, sums, self.n_tiles)

    def __call__(
        self, main: Features | Input, skip: Features | None, out: Features, n_images: Tensor
    ) -> None:
        """Read `main` and `skip`, write `out`, for as many images as the device counts."""
        grid = (self.n_tiles, out.values.shape[0], self.tiling.parts)
        arguments: list[Any]
        if isinstance(main, Input):
            arguments = [*main, self.weight, out.values, out.sums, n_images]
        else:
            beside = main if skip is None else skip
            arguments = [
                *(main.values, main.sums, main.n_tiles),
                *(beside.values, beside.sums, beside.n_tiles),
                *(self.weight, out.values, out.sums, n_images),
            ]
        self.kernel(grid, (self.n_threads, 1, 1), arguments, self.n_bytes)


def packed_order(n_out: int, n_in: int) -> Int[Tensor, "tap block_in block_out lane 2 4"]:
    """Return the order in which the lanes of a warp hold a convolution's weights.

    For a tap, 16 input and 16 output channels, lane l holds inputs 2 (l % 4) + {0, 1, 8, 9} of one
    output, then of another: with n = l // 4 these are 4 (n // 2) + n % 2 and that plus 2, so that
    the four results of a lane lie side by side. Weights count from 1; 0 stands for none. The nine
    taps of a first layer, which has one input channel, take the place of input channels.
    """
    weights = torch.arange(1, n_out * n_in * 9 + 1).view(n_out, n_in, 9)
    if n_in == 1:
        taps = torch.zeros(n_out, 16, 1, dtype=torch.int64)
        taps[:, :9, 0] = weights[:, 0]
        weights = taps
    blocks = weights.permute(2, 1, 0).unflatten(1, (-1, 16)).unflatten(-1, (-1, 16))
    lane = torch.arange(32)
    inputs = (lane % 4 * 2)[:, None, None] + torch.tensor([0, 1, 8, 9])
    number = lane // 4
    outputs = (number // 2 * 4 + number % 2)[:, None, None] + torch.tensor([0, 2])[:, None]
    return blocks.transpose(2, 3)[..., inputs.expand(-1, 2, -1), outputs.expand(-1, -1, 4)]
