"""The policy network of Jin, Unser and Yi, arXiv 1901.04547, as configured in arXiv 2010.16262.

Five blocks of 3x3 convolution, leaky ReLU and 2x2 max pooling, then two dense layers. The papers
report the channels (64 to 1024 in the first, 32 to 512 in the second), not the width of the dense
layer. The second reports 27,558,849 parameters at 128 columns, which no plain choice of that width
gives; the defaults here give 10,088,832.
"""

import itertools
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.policies.conv import check_image

_N_BLOCKS = 5


@final
class AlphaZeroPolicy(Policy):
    """Scores columns from the reconstruction only, without normalization of features.

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
