"""The paper's policy network: convolutions over the reconstruction, then dense layers.

arXiv 2010.16262, appendix A.2. Parameter names equal those of the authors' checkpoints, which
can be loaded directly; the last layer is `fc_out.4`. Also the network of Jin, Unser and Yi, arXiv
1901.04547, as configured in arXiv 2010.16262.
"""

import itertools
import math
from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.kernels.registry import Request, build
from kscout.layers import InstanceNorm
from kscout.policies.conv_cpu import KeptConvPolicy, convolve_on_cpu
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.policies.conv_view import ConvNetwork

_N_BLOCKS = 5

_N_FEATURES = 256
"""Channels of the coarsest level in the paper's networks, at 8 x 8 pixels."""


@final
class _ConvolutionBlock(nn.Module):
    """3x3 convolution, instance norm without parameters, ReLU and optional 2x2 max pooling."""

    def __init__(self, n_in: int, n_out: int, *, pools: bool) -> None:
        super().__init__()
        layers = [nn.Conv2d(n_in, n_out, kernel_size=3, padding=1), InstanceNorm(), nn.ReLU()]
        self.layers = nn.Sequential(*layers, *([nn.MaxPool2d(kernel_size=2)] if pools else []))

    def forward(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch out_channel out_row out_col"]:
        return self.layers(features)


@final
class ConvPolicy(ConvNetwork):
    """Scores columns from the reconstruction only.

    With the defaults 128 columns give the paper's knee network (4,685,568 parameters) and 256 its
    brain network (4,719,552).

    Args:
        n_cols: number of columns of the image.
        n_rows: number of rows; None for `n_cols`.
        n_channels: features of the first layer, doubled by each block; None for
            `256 / 2**n_blocks` (paper: 16 at 128 columns, 8 at 256).
        n_blocks: number of blocks, each of which halves the image; None for
            `round(log2(n_cols / 8))` (paper: 4 at 128 columns, 5 at 256).
        n_hidden: width of the two dense layers (paper: 256).
    """

    def __init__(
        self,
        *,
        n_cols: int,
        n_rows: int | None = None,
        n_channels: int | None = None,
        n_blocks: int | None = None,
        n_hidden: int = 256,
    ) -> None:
        super().__init__()
        self.n_cols = n_cols
        self.n_rows = n_cols if n_rows is None else n_rows
        self.n_blocks = default_n_blocks(n_cols) if n_blocks is None else n_blocks
        _check_size(self.n_rows, self.n_cols, self.n_blocks)
        self.n_channels = max(1, _N_FEATURES >> self.n_blocks) if n_channels is None else n_channels
        self.n_hidden = n_hidden
        widths = [self.n_channels * 2**level for level in range(self.n_blocks + 1)]
        # Paper: a 1x1 convolution. The reference has 3x3, which gives the paper's parameter count.
        self.channel_layer = _ConvolutionBlock(1, widths[0], pools=False)
        self.down_sample_layers = nn.ModuleList(
            _ConvolutionBlock(n_in, n_out, pools=True) for n_in, n_out in itertools.pairwise(widths)
        )
        n_pixels = (self.n_rows >> self.n_blocks) * (self.n_cols >> self.n_blocks)
        self.fc_out = nn.Sequential(
            nn.Linear(widths[-1] * n_pixels, n_hidden),
            nn.LeakyReLU(0.01),
            nn.Linear(n_hidden, n_hidden),
            nn.LeakyReLU(0.01),
            nn.Linear(n_hidden, n_cols),
        )

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        check_image(seen, self.n_rows, self.n_cols)
        return self.fc_out(self._features(seen.image).flatten(start_dim=1))

    @property
    def request(self) -> Request:
        weight = self.channel_layer.get_parameter("layers.0.weight")
        return Request(
            weight.device,
            frozenset({weight.dtype}),
            n_rows=self.n_rows,
            n_cols=self.n_cols,
            n_channels=self.n_channels,
            n_levels=self.n_blocks,
        )

    def view(self, precision: str) -> HalfPrecisionConvPolicy | KeptConvPolicy | None:
        """Return the fastest view for training or 16-bit images; None without kernels."""
        if self.request.device.type == "cuda" and precision == "fp32":
            return None
        makers: dict[str, Callable[[], HalfPrecisionConvPolicy | KeptConvPolicy | None]] = {
            "cuda": lambda: HalfPrecisionConvPolicy(self),
            "c": lambda: KeptConvPolicy(self),
            "torch": lambda: None,
        }
        return build("policy", self.request, makers)

    def _features(
        self, image: Float[Tensor, "batch row col"]
    ) -> Float[Tensor, "batch channel out_row out_col"]:
        blocks = [self.channel_layer, *self.down_sample_layers]
        if image.device.type == "cpu" and not torch.compiler.is_compiling():
            return convolve_on_cpu(image, [block.get_submodule("layers.0") for block in blocks])
        features = image[:, None]
        for block in blocks:
            features = block(features)
        return features


def check_image(seen: Observation, n_rows: int, n_cols: int) -> None:
    """Raise an error for images of another size than that of the network."""
    size = tuple(seen.image.shape[1:])
    if size != (n_rows, n_cols):
        raise ConfigError(
            f"a network for images of {n_rows}x{n_cols} was given images of "
            f"{size[0]}x{size[1]}; train one with n_rows = {size[0]} and n_cols = {size[1]}"
        )


def default_n_blocks(n_cols: int) -> int:
    """Return the number of halvings after which the number of columns is nearest to eight."""
    return max(0, round(math.log2(max(1, n_cols) / 8)))


def _check_size(n_rows: int, n_cols: int, n_blocks: int) -> None:
    if n_blocks < 0:
        raise ConfigError(f"n_blocks = {n_blocks} does not exist; set it to 0 or more")
    # Instance norm needs two pixels before the last pooling, the dense layers one after it.
    before = max(0, n_blocks - 1)
    if (n_rows >> before) * (n_cols >> before) < 2 or not min(n_rows, n_cols) >> n_blocks:
        raise ConfigError(
            f"images of {n_rows}x{n_cols} cannot be halved {n_blocks} times; "
            "lower n_blocks or use larger images"
        )


@final
class AlphaZeroPolicy(Policy):
    """Scores columns from the reconstruction only, without normalization of features.

    Five blocks of 3x3 convolution, leaky ReLU and 2x2 max pooling, then two dense layers. The
    papers report the channels (64 to 1024 in the first, 32 to 512 in the second), not the width of
    the dense layer. The second reports 27,558,849 parameters at 128 columns, which no plain choice
    of that width gives; the defaults here give 10,088,832.

    Args:
        n_cols: number of columns of the image.
        n_rows: number of rows; None for `n_cols`.
        n_channels: features of the first block, doubled by each further one (arXiv 2010.16262: 32).
        n_blocks: number of blocks, each of which halves the image; None for 5, or the largest
            possible number for smaller images (papers: 5).
        n_hidden: width of the dense layer.
    """

    def __init__(
        self,
        *,
        n_cols: int,
        n_rows: int | None = None,
        n_channels: int = 32,
        n_blocks: int | None = None,
        n_hidden: int = 1024,
    ) -> None:
        super().__init__()
        self.n_cols = n_cols
        self.n_rows = n_cols if n_rows is None else n_rows
        n_most = min(self.n_rows, self.n_cols).bit_length() - 1
        self.n_blocks = min(_N_BLOCKS, n_most) if n_blocks is None else n_blocks
        if not 1 <= self.n_blocks <= n_most:
            raise ConfigError(
                f"images of {self.n_rows}x{self.n_cols} cannot be halved {self.n_blocks} times; "
                f"set n_blocks to a number from 1 to {n_most}"
            )
        self.n_channels, self.n_hidden = n_channels, n_hidden
        widths = [1, *(n_channels << block for block in range(self.n_blocks))]
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(widths):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2)]
        self.blocks = nn.Sequential(*layers)
        n_pixels = (self.n_rows >> self.n_blocks) * (self.n_cols >> self.n_blocks)
        self.dense = nn.Sequential(
            nn.Linear(widths[-1] * n_pixels, n_hidden), nn.LeakyReLU(), nn.Linear(n_hidden, n_cols)
        )

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        check_image(seen, self.n_rows, self.n_cols)
        return self.dense(self.blocks(seen.image[:, None]).flatten(start_dim=1))
