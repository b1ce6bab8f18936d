"""The U-Net's forward pass in 16 bit on CUDA, close to what the memory's bandwidth allows.

`unet_kernels.cu` says how. The kernels are compiled for the image size when first used, by the
compiler that ships with torch; statistics and sums are in 32 bit. Results differ from the plain
network by the rounding of activations: `kscout bench` prints by how much.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kscout.reconstruction.unet import UNetNetwork

_SOURCE = Path(__file__).with_name("unet_kernels.cu")
_MODES = {"same": 0, "pool": 1, "up": 2}
_N_COMBINE_BLOCKS = 8


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
class _Features:
    """What one convolution leaves: values before the norm, and their sums per tile."""

    values: Tensor
    sums: Tensor
    n_tiles: int


@final
class _Convolution:
    """One compiled 3x3 convolution for one size."""

    def __init__(self, weight: Tensor, mode: str, n_skip: int, n_rows: int, n_cols: int) -> None:
        n_out, n_in = weight.shape[:2]
        n_main = n_in - n_skip
        tiling = Tiling.of(n_rows, n_cols, min(n_main, 64), n_out)
        self.shape, self.n_out, self.tiling = (n_rows, n_cols), n_out, tiling
        self.n_tiles = n_rows * n_cols // (tiling.n_rows * tiling.n_cols)
        self.n_threads = 32 * tiling.warps_m * tiling.warps_n
        self.is_first = n_in == 1
        if self.is_first:
            arguments: tuple[int, ...] = (n_rows, n_cols, n_out)
            arguments += (tiling.n_rows, tiling.n_cols, tiling.warps_m)
            self.kernel, self.n_bytes = _compile("convolve_first", arguments), 0
            taps = torch.zeros(n_out, 16, 1, 1, device=weight.device)
            taps[:, :9, 0, 0] = weight.flatten(1)
            self.weight = pack_weight(taps)
        else:
            arguments = (
                *(n_rows, n_cols, n_main, _MODES[mode], n_skip, n_out),
                *(tiling.n_rows, tiling.n_cols, tiling.warps_m, tiling.warps_n, tiling.parts),
            )
            n_pixels = (tiling.n_rows + 2) * (tiling.n_cols + 2)
            self.n_bytes = n_pixels * (min(n_main, 64) * 2 + 16) + n_in * 8
            self.kernel = _compile("convolve", arguments)
            self.kernel.set_shared_memory_config(self.n_bytes)
            self.weight = pack_weight(weight)

    def allocate(self, n_images: int) -> _Features:
        """Reserve what this convolution writes."""
        device = self.weight.device
        values = torch.empty(n_images, *self.shape, self.n_out, dtype=torch.half, device=device)
        sums = torch.empty(n_images, self.n_tiles, self.n_out, 2, device=device)
        return _Features(values, sums, self.n_tiles)

    def __call__(
        self, main: _Features | Tensor, skip: _Features | None, out: _Features, n_images: Tensor
    ) -> None:
        grid = (self.n_tiles, out.values.shape[0], self.tiling.parts)
        arguments: list[Any]
        if isinstance(main, Tensor):
            arguments = [main, self.weight, out.values, out.sums, n_images]
        else:
            beside = main if skip is None else skip
            arguments = [
                *(main.values, main.sums, main.n_tiles),
                *(beside.values, beside.sums, beside.n_tiles),
                *(self.weight, out.values, out.sums, n_images),
            ]
        self.kernel(grid, (self.n_threads, 1, 1), arguments, self.n_bytes)


@final
class FusedUNet:
    """A frozen U-Net for images of one size on one CUDA device."""

    def __init__(self, network: UNetNetwork, n_rows: int, n_cols: int) -> None:
        down, up = network.down_sample_layers, network.up_sample_layers
        self.n_rows, self.n_cols = n_rows, n_cols
        self.down = [
            _block(block, "pool" if level else "same", 0, n_rows >> level, n_cols >> level)
            for level, block in enumerate(down)
        ]
        n_pools = len(down)
        self.middle = _block(network.conv, "pool", 0, n_rows >> n_pools, n_cols >> n_pools)
        self.up = []
        for level, block in zip(range(n_pools - 1, -1, -1), up, strict=True):
            n_skip = _weights(block)[0].shape[1] // 2
            self.up.append(_block(block, "up", n_skip, n_rows >> level, n_cols >> level))
        self.final = combined_weight(network.conv2)
        arguments = (n_rows, n_cols, len(self.final) - 1)
        self.combine = _compile("combine", arguments)
        self.buffers: dict[int, list[_Features]] = {}

    @torch.no_grad()
    def __call__(
        self,
        images: Float[Tensor, "image row col"],
        n_images: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, "image row col"]:
        """Run the network on normalized images.

        Args:
            images: normalized zero-filled images, 32 bit.
            n_images: a count on the device; images from there on are left undefined. So a number
                that only the device knows costs no synchronization.
        """
        if n_images is None:
            n_images = torch.full((), len(images), dtype=torch.int32, device=images.device)
        buffers = iter(self._buffers(len(images)))

        def run(
            pair: tuple[_Convolution, _Convolution],
            main: _Features | Tensor,
            skip: _Features | None = None,
        ) -> _Features:
            middle, out = next(buffers), next(buffers)
            pair[0](main, skip, middle, n_images)
            pair[1](middle, None, out, n_images)
            return out

        features: _Features | Tensor = images.contiguous()
        skips = []
        for pair in self.down:
            features = run(pair, features)
            skips.append(features)
        features = run(self.middle, features)
        for pair in self.up:
            features = run(pair, features, skips.pop())
        out = torch.empty_like(images)
        arguments = [features.values, features.sums, features.n_tiles, self.final, out, n_images]
        self.combine((_N_COMBINE_BLOCKS, len(images), 1), (256, 1, 1), arguments, 0)
        return out

    def _buffers(self, n_images: int) -> list[_Features]:
        if n_images not in self.buffers:
            pairs = [*self.down, self.middle, *self.up]
            self.buffers[n_images] = [step.allocate(n_images) for pair in pairs for step in pair]
        return self.buffers[n_images]


def can_fuse(network: nn.Module, n_rows: int, n_cols: int) -> bool:
    """Say whether the kernels exist for this network and size."""
    if not isinstance(network, UNetNetwork):
        return False
    n_pools = len(network.down_sample_layers)
    n_channels = _weights(network.down_sample_layers[0])[0].shape[0]
    sides = [side >> level for side in (n_rows, n_cols) for level in range(n_pools + 1)]
    return (
        n_channels % 16 == 0
        and n_channels & (n_channels - 1) == 0
        and n_rows % 2**n_pools == n_cols % 2**n_pools == 0
        and all(side >= 4 and (side % 32 == 0 or 32 % side == 0) for side in sides)
    )


def pack_weight(weight: Float[Tensor, "out in row col"]) -> Tensor:
    """Order a convolution's weights as the lanes of a warp hold them.

    For a tap, 16 input and 16 output channels, lane l holds inputs 2 (l % 4) + {0, 1, 8, 9} of
    output l // 4, then the same of output l // 4 + 8.
    """
    n_out, n_in = weight.shape[:2]
    lane = torch.arange(32, device=weight.device)
    offsets = torch.tensor([0, 1, 8, 9], device=weight.device)
    inputs = (lane % 4 * 2)[:, None] + offsets
    outputs = (lane // 4)[:, None, None] + torch.tensor([0, 8], device=weight.device)[:, None]
    taps = weight.flatten(2).permute(2, 1, 0).reshape(-1, n_in // 16, 16, n_out // 16, 16)
    packed = taps.transpose(2, 3)[
        ..., inputs[:, None, :].expand(-1, 2, -1), outputs.expand(-1, -1, 4)
    ]
    return packed.half().contiguous()


def combined_weight(layers: nn.Sequential) -> Float[Tensor, " channel_and_bias"]:
    """Multiply 1x1 convolutions without activations into one weighted sum and its bias."""
    weight, bias = None, None
    for layer in layers:
        assert isinstance(layer, nn.Conv2d) and layer.bias is not None
        matrix, offset = layer.weight.detach().double()[:, :, 0, 0], layer.bias.detach().double()
        weight = matrix if weight is None else matrix @ weight
        bias = offset if bias is None else matrix @ bias + offset
    assert weight is not None and bias is not None
    return torch.cat([weight[0], bias]).float().contiguous()


def _weights(block: nn.Module) -> list[Tensor]:
    return [layer.weight.detach() for layer in block.modules() if isinstance(layer, nn.Conv2d)]


def _block(
    block: nn.Module, mode: str, n_skip: int, n_rows: int, n_cols: int
) -> tuple[_Convolution, _Convolution]:
    first, second = _weights(block)
    return (
        _Convolution(first, mode, n_skip, n_rows, n_cols),
        _Convolution(second, "same", 0, n_rows, n_cols),
    )


@cache
def _compile(name: str, arguments: tuple[int, ...]) -> Any:  # noqa: ANN401 - torch's own type
    expression = f"{name}<{','.join(map(str, arguments))}>"
    return torch.cuda._compile_kernel(_SOURCE.read_text(), expression)
