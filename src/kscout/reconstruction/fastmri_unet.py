"""The U-Net that fastMRI publishes, for compatibility with its weights.

Unlike the paper's it has average pooling, leaky ReLU, transposed convolutions, no biases and
twice the features on the coarsest level. Parameter names are those of fastMRI's checkpoints.
"""

from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.core import Measurement, Reconstruction, Reconstructor, SliceBatch
from kscout.errors import ConfigError
from kscout.layers import ConvolutionBlock, InstanceNorm, check_size, peak_bytes
from kscout.physics.normalization import denormalize, normalize_with

SLOPE = 0.2
"""Negative slope of the leaky ReLU."""


_Block = partial(ConvolutionBlock, slope=SLOPE, bias=False)


@final
class UpsamplingBlock(nn.Module):
    """Transposed convolution that doubles the size, instance norm, leaky ReLU."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(n_in, n_out, kernel_size=2, stride=2, bias=False),
            InstanceNorm(),
            nn.LeakyReLU(SLOPE),
        )

    def forward(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch out_channel out_row out_col"]:
        return self.layers(features)


@final
class FastMRINetwork(nn.Module):
    """Maps normalized zero-filled images to images in the same units.

    Supports any size whose coarsest level has at least two pixels; if a side is odd at some level,
    the upsampled features are extended by reflection to the size of the skip connection.
    """

    def __init__(
        self, *, n_channels: int, n_pools: int, dropout: float = 0.0, n_images: int = 1
    ) -> None:
        super().__init__()
        widths = [n_channels * 2**level for level in range(n_pools + 1)]
        pairs = list(zip([n_images, *widths], widths[:-1], strict=False))
        self.down_sample_layers = nn.ModuleList(_Block(i, o, dropout) for i, o in pairs)
        self.conv = _Block(widths[-2], widths[-1], dropout)
        self.up_conv = nn.ModuleList()
        self.up_transpose_conv = nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.up_transpose_conv.append(UpsamplingBlock(2 * width, width))
            block: nn.Module = _Block(2 * width, width, dropout)
            if width == n_channels:
                block = nn.Sequential(block, nn.Conv2d(n_channels, n_images, kernel_size=1))
            self.up_conv.append(block)

    def forward(self, image: Float[Tensor, "batch n row col"]) -> Float[Tensor, "batch n row col"]:
        check_size(image.shape[-2], image.shape[-1], len(self.down_sample_layers))
        features, skips = image, []
        for block in self.down_sample_layers:
            features = block(features)
            skips.append(features)
            features = F.avg_pool2d(features, kernel_size=2)
        features = self.conv(features)
        for upsample, block in zip(self.up_transpose_conv, self.up_conv, strict=True):
            skip = skips.pop()
            features = upsample(features)
            missing = [skip.shape[axis] - features.shape[axis] for axis in (-1, -2)]
            if any(missing):
                features = F.pad(features, [0, missing[0], 0, missing[1]], mode="reflect")
            features = block(torch.cat([features, skip], dim=1))
        return features


@final
class FastMRIUNet(Reconstructor):
    """FastMRI's U-Net, scored on images in the units of the zero-filled image.

    Args:
        n_channels: features of the finest level (fastMRI: 32; its published models: 256).
        n_pools: number of poolings (fastMRI: 4).
        dropout: probability of dropping a feature map in training.
    """

    def __init__(self, *, n_channels: int = 32, n_pools: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        if n_channels < 1 or n_pools < 1:
            raise ConfigError(
                f"a U-Net of n_channels = {n_channels} and n_pools = {n_pools} is impossible; "
                "both must be at least 1"
            )
        self.n_channels = n_channels
        self.n_pools = n_pools
        self.dropout = dropout
        self.network = FastMRINetwork(n_channels=n_channels, n_pools=n_pools, dropout=dropout)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        output = self.network(measured.normalized[:, None])[:, 0]
        # Training targets were normalized with statistics of the zero-filled image, so the output
        # is denormalized with these to an image, as fastMRI scores it (`blind`).
        if self.training:
            return Reconstruction(output, measured.mean, measured.std)
        # Denormalizing the raw output with the target's statistics (`paper`) would scale it twice,
        # and policies expect standard deviation one, so the image is normalized again by its own
        # statistics, without clamping, which could not be undone.
        return Reconstruction.of(denormalize(output, measured.mean, measured.std))

    def loss(self, found: Reconstruction, batch: SliceBatch) -> Float[Tensor, ""]:
        """Return fastMRI's loss: the mean absolute error in units of the zero-filled image.

        `found` is the output in training mode, not yet normalized by its own statistics.
        """
        target = normalize_with(batch.target, found.mean, found.std)
        return (found.image.float() - target).abs().mean()

    def compile_passes(self) -> None:
        self.network.compile(dynamic=False)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return peak_bytes(self.n_channels, n_coils, n_rows, n_cols)
