"""The paper's reconstruction: a small U-Net from the zero-filled to the full image.

arXiv 2010.16262, appendix A. The loss is the mean absolute error of normalized images.
"""

from functools import partial
from typing import final

import torch

from kscout.core import Measurement, Protocol, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.layers.unet import UNetNetwork, peak_bytes
from kscout.names import check_protocol
from kscout.reconstruction.unet_frozen import (
    HalfPrecisionUNet,
    InferenceReconstructor,
    has_kernels,
    kernels_or_refusal,
    kernels_where_served,
)


@final
class UNet(Reconstructor):
    """The paper's U-Net, by default with its 837,635 parameters.

    Args:
        n_channels: features of the finest level, doubled at each deeper level (paper: 16).
        n_pools: number of poolings (paper: 4).
        dropout: probability of dropping a feature map in training (paper: 0).
        protocol: protocol of its training. `paper`: targets normalized by their own statistics;
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
                f"a U-Net of n_channels = {n_channels} and n_pools = {n_pools} is impossible; "
                "n_channels must be at least 2 and n_pools at least 1"
            )
        check_protocol(protocol)
        self.n_channels = n_channels
        self.n_pools = n_pools
        self.dropout = dropout
        self.protocol = protocol
        self.network = UNetNetwork(n_channels=n_channels, n_pools=n_pools, dropout=dropout)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image = self.network(measured.normalized[:, None])[:, 0]
        return Reconstruction(image, measured.mean, measured.std)

    def compile_passes(self) -> None:
        self.network.compile(dynamic=False)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return peak_bytes(self.n_channels, n_coils, n_rows, n_cols)

    def frozen(
        self, *, precision: str, n_rows: int, n_cols: int, device: torch.device | str
    ) -> Reconstructor:
        """Return a view without gradients: on a CPU in fewer passes, on CUDA in 16 bit.

        With `auto`, images of sizes without kernels are reconstructed in 32 bit.

        On golden images 16 bit changes SSIM by at most 1e-5, and its candidates' gains correlate
        by .9997.
        """
        place = torch.device(device)
        plain = partial(super().frozen, n_rows=n_rows, n_cols=n_cols, device=device)
        if place.type == "cpu":
            plain(precision=precision)
            return InferenceReconstructor(self)
        if precision == "fp32" or not has_kernels(self.network, place):
            return plain(precision=precision)
        plain(precision="fp32")
        make_kernels = kernels_or_refusal if precision == "fp16" else kernels_where_served
        return HalfPrecisionUNet(self, n_rows=n_rows, n_cols=n_cols, make_kernels=make_kernels)
