"""The U-Net's forward pass in 16 bit on CUDA, close to the limit of the memory bandwidth.

Statistics and sums are in 32 bit. Results differ from the plain network by the rounding of
activations.
"""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kscout.kernels.convolution import LAST, Convolution, Features, Input, Workspace
from kscout.kernels.cuda import compile_kernel
from kscout.layers import UNetNetwork, combined_weight, convolution_weights


@final
class FusedUNet:
    """A frozen U-Net for images of one size on one CUDA device.

    Args:
        workspace: memory shared with networks that never run at the same time; by default its own.
    """

    def __init__(
        self, network: UNetNetwork, n_rows: int, n_cols: int, workspace: Workspace | None = None
    ) -> None:
        down, up = network.down_sample_layers, network.up_sample_layers
        self.n_rows, self.n_cols = n_rows, n_cols
        self.down = [
            _block(block, "pooled", n_rows >> level, n_cols >> level, 0, pools=True)
            for level, block in enumerate(down)
        ]
        n_pools = len(down)
        self.middle = _block(network.conv, "pooled", n_rows >> n_pools, n_cols >> n_pools, 0)
        self.up = []
        for level, block in zip(range(n_pools - 1, -1, -1), up, strict=True):
            n_skip = convolution_weights(block)[0].shape[1] // 2
            self.up.append(_block(block, "up", n_rows >> level, n_cols >> level, n_skip))
        self.final = combined_weight(network.conv2)
        n_channels = len(self.final) - 1
        n_each = max(1, 64 // n_channels)  # Pixels per thread, limited by the number of registers.
        self.combine = compile_kernel(LAST, "combine", n_rows, n_cols, n_channels, n_each)
        self.n_combine_blocks = -(-n_rows * n_cols // (256 * n_each))
        self.workspace = workspace or Workspace(self.final.device)
        self.buffers: dict[int, list[Features]] = {}

    @torch.no_grad()
    def set_weights(self, network: UNetNetwork) -> None:
        """Copy the weights of a network of the same shape, in place."""
        blocks = [*network.down_sample_layers, network.conv, *network.up_sample_layers]
        for pair, block in zip([*self.down, self.middle, *self.up], blocks, strict=True):
            for step, weight in zip(pair, convolution_weights(block), strict=True):
                step.set_weight(weight)
        self.final.copy_(combined_weight(network.conv2))

    @torch.no_grad()
    def __call__(
        self,
        images: Float[Tensor, "image row col"],
        mean: Float[Tensor, " image"],
        std: Float[Tensor, " image"],
        n_images: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, "image row col"]:
        """Normalize magnitudes and run the network on them.

        Images after the first `n_images`, a number on the device, which avoids a synchronization,
        are undefined.
        """
        if n_images is None:
            n_images = torch.full((), len(images), dtype=torch.int32, device=images.device)
        buffers = iter(self._buffers(len(images)))

        def run(
            pair: tuple[Convolution, Convolution],
            main: Features | Input,
            skip: Features | None = None,
        ) -> Features:
            middle, out = next(buffers), next(buffers)
            pair[0](main, skip, middle, n_images)
            pair[1](middle, None, out, n_images)
            return out

        features: Features | Input = Input(images.contiguous(), mean, std)
        skips = []
        for pair in self.down:
            features = run(pair, features)
            skips.append(features)
        features = run(self.middle, features)
        for pair in self.up:
            features = run(pair, features, skips.pop())
        out = torch.empty_like(images)
        arguments = [features.values, features.sums, features.n_tiles, self.final, out, n_images]
        self.combine((self.n_combine_blocks, len(images), 1), (256, 1, 1), arguments, 0)
        return out

    def _buffers(self, n_images: int) -> list[Features]:
        """Return buffers for `n_images`, rounded up to a power of two to share them."""
        size = 1 << (n_images - 1).bit_length()
        if size not in self.buffers:
            steps = [step for pair in (*self.down, self.middle, *self.up) for step in pair]
            self.buffers[size] = self.workspace.lay_out(
                lambda empty: [step.allocate(size, empty) for step in steps]
            )
        return [features.part(slice(n_images)) for features in self.buffers[size]]


def _block(
    block: nn.Module, mode: str, n_rows: int, n_cols: int, n_skip: int, *, pools: bool = False
) -> tuple[Convolution, Convolution]:
    first, second = convolution_weights(block)
    return (
        Convolution(first, mode, n_rows, n_cols, n_skip=n_skip, clamps=True),
        Convolution(second, "same", n_rows, n_cols, pools=pools),
    )
