"""3x3 convolutions in 16 bit on CUDA that apply the instance norm of their input.

`convolution.cu` describes the algorithm. Values have axes [image, row, col, channel].
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.kernels.cuda import compile_kernel

FILE = "convolution.cu"
LAST = "convolution_last.cu"
_MODES = {"same": 0, "up": 1, "pooled": 2}


Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""Returns an uninitialized tensor of a shape and dtype."""
_Laid = TypeVar("_Laid")
_N_ALIGNED = 256
"""Alignment of tensors in bytes, the same as of torch's own allocations."""

_DEPTH = 16
"""Channels of a tile in shared memory at a time."""
_SHARED_BYTES = 228 * 1024
"""Shared memory of one multiprocessor; each block also needs `_BLOCK_BYTES`."""
_BLOCK_BYTES = 1024
_N_BLOCKS = (3, 4)
"""Smallest number of blocks that keep a multiprocessor busy, also for tiles with few products: some
wait or write while others multiply."""


@final
@dataclass(frozen=True)
class Division:
    """The division of one fused convolution among blocks and warps."""

    n_in: int
    n_out: int
    ups: bool
    """Whether a part of the input is upsampled."""
    n_rows: int
    n_cols: int
    warps_m: int
    warps_n: int
    n_part: int
    """Output channels of one block; other blocks compute the remaining ones of the tile."""
    n_stages: int
    """Steps of `_DEPTH` channels in shared memory: one is multiplied while others are loaded."""
    keeps_weights: bool
    """Whether weights stay in shared memory; otherwise they are loaded with each step."""

    @classmethod
    def of(
        cls, n_rows: int, n_cols: int, n_in: int, n_out: int, *, ups: bool = False
    ) -> "Division":
        """Choose tiles that are enough for the chip and small enough for several blocks.

        Their sides are powers of two that divide those of the image.
        """
        width = math.gcd(n_cols, 32)
        is_large = n_rows * n_cols >= 128 * 64 and n_out == 16
        height = math.gcd(n_rows, 16 if is_large or width < 32 else 8)
        n_products = height * width // 16
        # Four products of a warp in a column share most of the pixels that they read; so do two
        # in a row, for twice the channels.
        warps_m = max(n_products // 4, min(n_products, max(width // 16, 2)))
        n_tiles = n_rows * n_cols // (height * width)
        # A multiprocessor should also have work for a quarter of the images.
        is_wide = n_out % 32 == 0 and warps_m % 2 == 0 and n_tiles * n_out >= 4 * 32
        n_part = 32 if is_wide else 16
        fields = (n_in, n_out, ups, height, width, warps_m, 1, n_part)
        most = min(4, n_in // _DEPTH + 2)
        plans = [
            cls(*fields, n_stages, keeps)
            for keeps in (True, False)
            for n_stages in range(most, 1, -1)
        ]
        # More stages hide more latency, unless they reduce the number of resident blocks.
        wanted = _N_BLOCKS[n_part == 16 or n_in <= 2 * _DEPTH]
        return max(plans, key=lambda plan: min(plan.n_resident, wanted))

    @property
    def parts(self) -> int:
        """Number of blocks that share the output channels of one tile."""
        return self.n_out // self.n_part

    @property
    def n_threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def n_bytes(self) -> int:
        """Shared memory of a block in bytes."""
        n_tile = (self.n_rows + 2) * (self.n_cols + 2) * _DEPTH * 2
        n_weights = self.n_part * 18 * (self.n_in if self.keeps_weights else _DEPTH * self.n_stages)
        n_source = self.ups * (self.n_rows // 2 + 2) * (self.n_cols // 2 + 2) * _DEPTH * 2
        n_sums = self.warps_m * self.n_part * (1 if self.n_in > _DEPTH else 2)
        n_sums += max(self.n_in, min(128, self.n_threads))
        n_staged = self.n_stages * n_tile + (self.n_stages - 1) * n_source
        return n_staged + n_weights + self.n_in * 4 + n_sums * 8

    @property
    def n_registers(self) -> int:
        """Registers per thread below which the kernel would spill."""
        n_own = self.n_part // self.warps_n
        n_sums = self.n_rows * self.n_cols // self.warps_m * n_own // 32
        return 40 + n_sums + n_own * 3 // 4

    @property
    def n_resident(self) -> int:
        """Blocks that fit on one multiprocessor; may be 0."""
        by_memory = _SHARED_BYTES // (self.n_bytes + _BLOCK_BYTES)
        return min(by_memory, 65536 // (self.n_registers * self.n_threads), 8)


@final
@dataclass(frozen=True)
class Features:
    """The output of one convolution: values before the norm, and their sums per tile."""

    values: Tensor
    sums: Tensor
    n_tiles: int
    pooled: Tensor | None = None
    """Maxima of 2 x 2 values, if requested."""

    @property
    def read(self) -> Tensor:
        """The input of the next layer in a network without skip connections."""
        return self.values if self.pooled is None else self.pooled

    def part(self, some: slice) -> "Features":
        pooled = None if self.pooled is None else self.pooled[some]
        return Features(self.values[some], self.sums[some], self.n_tiles, pooled)


class Input(NamedTuple):
    """Images in 32 bit and their normalization."""

    image: Tensor
    mean: Tensor
    std: Tensor


@final
class Convolution:
    """One compiled 3x3 convolution for one size.

    Args:
        weight: [out, in, 3, 3]; one input channel makes a first layer, which reads images.
        mode: input: values of the `same` size, of half the size (`up`), or the maxima of a
            convolution of twice the size with `pools` (`pooled`).
        n_rows: rows of the output.
        n_cols: columns of the output.
        n_skip: input channels of a second tensor of the output's size.
        clamps: whether a first layer clamps normalized images to six standard deviations.
        pools: whether to also compute maxima of 2 x 2 values; not for first layers.
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
        pools: bool = False,
    ) -> None:
        n_out, n_in = weight.shape[:2]
        division = Division.of(n_rows, n_cols, n_in, n_out, ups=mode == "up")
        sizes = (division.n_rows, division.n_cols, division.warps_m)
        self.shape, self.n_out, self.division = (n_rows, n_cols), n_out, division
        self.reads_pooled, self.pools = mode == "pooled", pools
        self.n_tiles = n_rows * n_cols // (division.n_rows * division.n_cols)
        if n_in == 1:
            arguments: tuple[int, ...] = (n_rows, n_cols, n_out, *sizes, int(clamps))
            self.kernel = compile_kernel(FILE, "convolve_first", *arguments)
            self.n_threads, self.n_bytes, n_parts = 32 * division.warps_m, 0, 1
            n_resident = max(1, (32 if n_out <= 16 else 16) // division.warps_m)
        else:
            layers = (n_rows, n_cols, n_in - n_skip, _MODES[mode], n_skip, n_out)
            divided = (division.warps_n, division.parts, division.n_stages)
            some = (int(division.keeps_weights), division.n_resident, int(pools))
            self.n_threads, self.n_bytes = division.n_threads, division.n_bytes
            arguments = (*layers, *sizes, *divided, *some)
            self.kernel = compile_kernel(FILE, "convolve", *arguments, n_bytes=self.n_bytes)
            n_parts, n_resident = division.parts, division.n_resident
        n_blocks, device = n_resident, weight.device
        if device.type == "cuda":
            n_blocks *= torch.cuda.get_device_properties(device).multi_processor_count
        self.grid = (max(1, n_blocks // n_parts), n_parts, 1)
        self.order = packed_order(n_out, n_in).to(weight.device)
        self.weight = torch.empty(self.order.shape, dtype=torch.half, device=weight.device)
        self.set_weight(weight)

    def set_weight(self, weight: Float[Tensor, "out in 3 3"]) -> None:
        """Replace the weights in place, so that a CUDA graph uses the new ones."""
        values = weight.detach().reshape(-1)
        self.weight.copy_(torch.cat([values.new_zeros(1), values])[self.order])

    def allocate(self, n_images: int, empty: Empty | None = None) -> Features:
        """Allocate the output, by `empty` or in new memory."""
        device = self.weight.device
        empty = empty or (lambda shape, dtype: torch.empty(*shape, dtype=dtype, device=device))
        values = empty((n_images, *self.shape, self.n_out), torch.half)
        sums = empty((n_images, self.n_tiles, self.n_out, 2), torch.float32)
        pooled = None
        if self.pools:
            n_rows, n_cols = self.shape
            pooled = empty((n_images, n_rows // 2, n_cols // 2, self.n_out), torch.half)
        return Features(values, sums, self.n_tiles, pooled)

    def __call__(
        self, main: Features | Input, skip: Features | None, out: Features, n_images: Tensor
    ) -> None:
        """Read `main` and `skip`, write `out`, for the number of images on the device."""
        most = len(out.values)
        grid = (min(self.grid[0], self.n_tiles * most), *self.grid[1:])
        arguments: list[Tensor | int]
        if isinstance(main, Input):
            arguments = [*main, self.weight, out.values, out.sums, n_images, most]
        else:
            second = main if skip is None else skip
            read = main.pooled if self.reads_pooled else main.values
            pooled = out.pooled if self.pools else out.values
            assert read is not None and pooled is not None
            arguments = [
                *(read, main.sums, main.n_tiles),
                *(second.values, second.sums, second.n_tiles),
                *(self.weight, out.values, pooled, out.sums, n_images, most),
            ]
        self.kernel(grid, (self.n_threads, 1, 1), arguments, self.n_bytes)


def packed_order(n_out: int, n_in: int) -> Int[Tensor, "tap block_in block_out lane 2 4"]:
    """Return the order in which the lanes of a warp store a convolution's weights.

    For a tap, 16 input and 16 output channels, lane l has inputs 2 (l % 4) + {0, 1, 8, 9} of one
    output, then of another: with n = l // 4 these are 4 (n // 2) + n % 2 and that plus 2, so that
    the four results of a lane are adjacent. Weights count from 1; 0 means none. The nine
    taps of a first layer, which has one input channel, replace input channels.
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


@final
class Workspace:
    """Provides uninitialized memory to one user after the other, never to two at once.

    Memory is never freed, because a CUDA graph may use it. Layouts that fit the present memory use
    it, so that nothing is allocated after the largest one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: list[Tensor] = []

    def lay_out(self, layout: Callable[[Empty], _Laid]) -> _Laid:
        """Return the result of a layout with tensors that do not overlap; it is called twice."""
        counted = _Cut(torch.empty(0, dtype=torch.uint8, device="meta"))
        layout(counted.empty)
        fitting = [block for block in self.blocks if len(block) >= counted.n_bytes]
        if not fitting:
            fitting = [torch.empty(counted.n_bytes, dtype=torch.uint8, device=self.device)]
            self.blocks += fitting
        return layout(_Cut(min(fitting, key=len)).empty)


class _Cut:
    """Allocates consecutive tensors from a block; on the device `meta` it only counts bytes."""

    def __init__(self, block: Tensor) -> None:
        self.block, self.n_bytes = block, 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        begin, n_bytes = self.n_bytes, math.prod(shape) * dtype.itemsize
        self.n_bytes += -(-n_bytes // _N_ALIGNED) * _N_ALIGNED
        if self.block.is_meta:
            return torch.empty(*shape, dtype=dtype, device="meta")
        return self.block[begin : begin + n_bytes].view(dtype).view(*shape)
