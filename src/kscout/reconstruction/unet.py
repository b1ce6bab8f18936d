"""The paper's reconstruction: a small U-Net from the zero-filled to the full image.

arXiv 2010.16262, section 3, after arXiv 1811.08839. Parameter names are those of the authors'
checkpoints, which therefore load as they are.
"""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.core import PROTOCOLS, MagnitudeReconstructor, Protocol
from kscout.errors import ConfigError, unknown_name
from kscout.physics.normalization import normalize_with


@final
class ConvolutionBlock(nn.Module):
    """Twice: 3x3 convolution, instance norm without parameters, ReLU, dropout."""

    def __init__(self, n_in: int, n_out: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_layers(n_in, n_out, dropout), *_layers(n_out, n_out, dropout))

    def forward(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch out_channel row col"]:
        return self.layers(features)


def _layers(n_in: int, n_out: int, dropout: float) -> list[nn.Module]:
    return [
        nn.Conv2d(n_in, n_out, kernel_size=3, padding=1),
        nn.InstanceNorm2d(n_out),
        nn.ReLU(),
        nn.Dropout2d(dropout),
    ]


@final
class UNetNetwork(nn.Module):
    """Maps normalized zero-filled images to normalized images.

    Takes any size whose coarsest level has two pixels or more, for four poolings 32 x 16 and up.
    Where a side is no multiple of `2**n_pools`, pooling drops its last line and upsampling goes
    to the size of the skip connection; for multiples this is plain upsampling by two.
    """

    def __init__(self, *, n_channels: int, n_pools: int, dropout: float) -> None:
        super().__init__()
        widths = [n_channels * 2**level for level in range(n_pools)]
        pairs = list(zip([1, *widths], widths, strict=False))
        self.down_sample_layers = nn.ModuleList(ConvolutionBlock(i, o, dropout) for i, o in pairs)
        self.conv = ConvolutionBlock(widths[-1], widths[-1], dropout)
        narrowed = [*reversed(widths[:-1]), n_channels]
        self.up_sample_layers = nn.ModuleList(
            ConvolutionBlock(2 * n_in, n_out, dropout)
            for n_in, n_out in zip(reversed(widths), narrowed, strict=True)
        )
        self.conv2 = nn.Sequential(
            nn.Conv2d(n_channels, n_channels // 2, kernel_size=1),
            nn.Conv2d(n_channels // 2, 1, kernel_size=1),
            nn.Conv2d(1, 1, kernel_size=1),
        )

    def forward(self, image: Float[Tensor, "batch 1 row col"]) -> Float[Tensor, "batch 1 row col"]:
        check_size(image.shape[-2], image.shape[-1], len(self.down_sample_layers))
        features, skips = image, []
        for block in self.down_sample_layers:
            features = block(features)
            skips.append(features)
            features = F.max_pool2d(features, kernel_size=2)
        features = self.conv(features)
        for block in self.up_sample_layers:
            skip = skips.pop()
            features = F.interpolate(
                features, size=skip.shape[-2:], mode="bilinear", align_corners=False
            )
            features = block(torch.cat([features, skip], dim=1))
        return self.conv2(features)


def check_size(n_rows: int, n_cols: int, n_pools: int) -> None:
    """Refuse images of which the coarsest level has no two pixels to normalize over."""
    if (n_rows >> n_pools) * (n_cols >> n_pools) < 2:
        unit = 2**n_pools
        raise ConfigError(
            f"images of {n_rows}x{n_cols} are too small for {n_pools} poolings, which need "
            f"{2 * unit}x{unit} or more; lower n_pools or use larger images"
        )


@final
class UNet(MagnitudeReconstructor):
    """The paper's U-Net: by default its 837,635 parameters.

    Args:
        n_channels: features of the finest level, doubled at each coarser one (paper: 16).
        n_pools: number of poolings (paper: 4).
        dropout: probability of dropping a feature map in training (paper: 0).
        protocol: what it was trained for. `paper`: targets normalized by their own statistics;
            `blind`: by those of the zero-filled image, which undo the normalization.
    """

    def __init__(
        self,
        *,
        n_channels: int = 16,
        n_pools: int = 4,
        dropout: float = 0.0,
        protocol: Protocol = "paper",
    ) -> None:
        super().__init__()
        if n_channels < 2 or n_pools < 1:
            raise ConfigError(
                f"a U-Net of n_channels = {n_channels} and n_pools = {n_pools} does not exist; "
                "n_channels starts at 2 and n_pools at 1"
            )
        if protocol not in PROTOCOLS:
            raise unknown_name("protocol", protocol, list(PROTOCOLS))
        self.n_channels = n_channels
        self.n_pools = n_pools
        self.dropout = dropout
        self.protocol = protocol
        self.network = UNetNetwork(n_channels=n_channels, n_pools=n_pools, dropout=dropout)

    def from_magnitude(
        self,
        magnitude: Float[Tensor, "batch row col"],
        mean: Float[Tensor, " batch"],
        std: Float[Tensor, " batch"],
        n_images: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, "batch row col"]:
        return self.network(normalize_with(magnitude, mean, std)[:, None])[:, 0]
