"""The network of the paper's reconstruction: a small U-Net on normalized magnitude images.

arXiv 2010.16262, appendix A, after arXiv 1811.08839. Parameter names equal those of the authors'
checkpoints, which can be loaded directly.
"""

from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.errors import ConfigError

_MOST_POOLS = 12


@final
class InstanceNorm(nn.Module):
    """Instance norm without parameters."""

    def forward(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch channel row col"]:
        if not torch.compiler.is_compiling():
            return F.instance_norm(features)
        # Torch's function calls batch norm, which a compiler cannot fuse, and which copies
        # features stored channels last.
        variance, mean = torch.var_mean(features.float(), dim=(2, 3), correction=0, keepdim=True)
        return ((features - mean) * torch.rsqrt(variance + 1e-5)).to(features.dtype)


@final
class ConvolutionBlock(nn.Module):
    """Twice: 3x3 convolution, instance norm without parameters, ReLU, dropout."""

    def __init__(
        self, n_in: int, n_out: int, dropout: float, *, slope: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (n_in, n_out):
            layers += [
                nn.Conv2d(width, n_out, kernel_size=3, padding=1, bias=bias),
                InstanceNorm(),
                nn.LeakyReLU(slope) if slope else nn.ReLU(),
                nn.Dropout2d(dropout),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch out_channel row col"]:
        return self.layers(features)


@final
class UNetNetwork(nn.Module):
    """Maps normalized zero-filled images to normalized images.

    Supports sizes whose coarsest level has at least two pixels, for four poolings 32 x 16 and up.
    If a side is no multiple of `2**n_pools`, pooling drops its last line and upsampling goes to the
    size of the skip connection; for multiples this is plain upsampling by two.
    """

    def __init__(
        self,
        *,
        n_channels: int,
        n_pools: int,
        dropout: float,
        n_inputs: int = 1,
        slope: float = 0.0,
    ) -> None:
        super().__init__()
        if n_pools > _MOST_POOLS:
            raise ConfigError(
                f"n_pools is {n_pools}; use at most {_MOST_POOLS}, as each halves the images and "
                "doubles the features"
            )
        block = partial(ConvolutionBlock, dropout=dropout, slope=slope)
        self.n_channels = n_channels
        widths = [n_channels * 2**level for level in range(n_pools)]
        pairs = list(zip([n_inputs, *widths], widths, strict=False))
        self.down_sample_layers = nn.ModuleList(block(i, o) for i, o in pairs)
        self.conv = block(widths[-1], widths[-1])
        narrowed = [*reversed(widths[:-1]), n_channels]
        self.up_sample_layers = nn.ModuleList(
            block(2 * n_in, n_out) for n_in, n_out in zip(reversed(widths), narrowed, strict=True)
        )
        self.conv2 = nn.Sequential(
            nn.Conv2d(n_channels, n_channels // 2, kernel_size=1),
            nn.Conv2d(n_channels // 2, 1, kernel_size=1),
            nn.Conv2d(1, 1, kernel_size=1),
        )

    def forward(
        self, image: Float[Tensor, "batch input row col"]
    ) -> Float[Tensor, "batch 1 row col"]:
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


def convolution_weights(block: nn.Module) -> list[Float[Tensor, "_ _ 3 3"]]:
    """Return the weights of a block's convolutions, in order."""
    return [layer.weight.detach() for layer in block.modules() if isinstance(layer, nn.Conv2d)]


def combined_weight(layers: nn.Sequential) -> Float[Tensor, " channel_and_bias"]:
    """Return one weighted sum and its bias, equal to 1x1 convolutions without activations."""
    weight, bias = None, None
    for layer in layers:
        assert isinstance(layer, nn.Conv2d) and layer.bias is not None
        matrix, offset = layer.weight.detach().double()[:, :, 0, 0], layer.bias.detach().double()
        weight = matrix if weight is None else matrix @ weight
        bias = offset if bias is None else matrix @ bias + offset
    assert weight is not None and bias is not None
    return torch.cat([weight[0], bias]).float().contiguous()


def check_size(n_rows: int, n_cols: int, n_pools: int) -> None:
    """Raise an error if the coarsest level has fewer than two pixels, as one has no deviation."""
    if (n_rows >> n_pools) * (n_cols >> n_pools) < 2:
        unit = 2**n_pools
        raise ConfigError(
            f"images of {n_rows}x{n_cols} are too small for {n_pools} poolings, which need "
            f"{2 * unit}x{unit} or more; lower n_pools or use larger images"
        )


def peak_bytes(n_channels: int, n_coils: int, n_rows: int, n_cols: int) -> int:
    """Return the peak memory of a U-Net in 32 bit for one image, without gradients.

    Eight feature maps of the finest level and their copies, with at least the paper's 16
    channels; and a zero-filled image and its successor per coil.
    """
    per_pixel = 32 * max(16, n_channels) + 16 * (n_coils - 1)
    return per_pixel * n_rows * n_cols
