"""The paper's reconstruction: a small U-Net from the zero-filled to the full image.

arXiv 2010.16262, appendix A. The loss is the mean absolute error of normalized images. Frozen views
for inference are equal up to rounding, and faster.
"""

from functools import partial
from typing import final

import torch

from kscout.core import Measurement, Protocol, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.kernels.convolution import Workspace
from kscout.kernels.registry import SIDES, UNIT, Request, build, serving
from kscout.layers import UNetNetwork, peak_bytes
from kscout.names import check_protocol
from kscout.reconstruction.unet_fused import FusedUNet
from kscout.reconstruction.unet_inference import InferenceUNet


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
        is_required = precision == "fp16"
        return HalfPrecisionUNet(self, n_rows=n_rows, n_cols=n_cols, is_required=is_required)


def has_kernels(network: UNetNetwork, device: torch.device) -> bool:
    """Return whether kernels support a network on a device for images of any size."""
    least = UNIT << len(network.down_sample_layers)
    return serving("unet", _request(network, device, least, least)) == "cuda"


def kernels_of(
    network: UNetNetwork, n_rows: int, n_cols: int, workspace: Workspace
) -> FusedUNet | None:
    """Return kernels for images of a size; None if there are none."""

    def fused() -> FusedUNet | None:
        return FusedUNet(network, n_rows, n_cols, workspace)

    request = _request(network, workspace.device, n_rows, n_cols)
    return build("unet", request, {"cuda": fused, "torch": lambda: None})


def _request(network: UNetNetwork, device: torch.device, n_rows: int, n_cols: int) -> Request:
    return Request(
        device,
        n_rows=n_rows,
        n_cols=n_cols,
        n_channels=network.n_channels,
        n_levels=len(network.down_sample_layers),
    )


@final
class InferenceReconstructor(Reconstructor):
    """A frozen U-Net of the paper on a CPU, run by `InferenceUNet`."""

    def __init__(self, unet: UNet) -> None:
        super().__init__()
        self.protocol = unet.protocol
        self.network = InferenceUNet(unet.network)
        # In a list, so that its weights are not registered here.
        self._viewed = [unet]

    def refresh(self) -> None:
        self.network.load_state_dict(InferenceUNet(self._viewed[0].network).state_dict())

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image = self.network(measured.normalized[:, None])[:, 0]
        return Reconstruction(image, measured.mean, measured.std)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return peak_bytes(self.network.n_channels, n_coils, n_rows, n_cols)


@final
class HalfPrecisionUNet(Reconstructor):
    """A frozen U-Net on CUDA by fused 16-bit kernels; statistics and sums are in 32 bit.

    Images of a size without kernels use the plain network, in 32 bit, or are an error if 16 bit
    `is_required`; `precision` refers to images of the expected size. Only one caller may use it at
    a time, for any image size, because all share one workspace.
    """

    def __init__(self, unet: UNet, *, n_rows: int, n_cols: int, is_required: bool = False) -> None:
        super().__init__()
        self.protocol = unet.protocol
        self.network = unet.network
        self._viewed = [unet]
        self._is_required = is_required
        self.workspace = Workspace(next(unet.parameters()).device)
        self.by_size: dict[tuple[int, int], FusedUNet | None] = {}
        self.precision = "fp32" if self._kernels(n_rows, n_cols) is None else "fp16"

    def _kernels(self, n_rows: int, n_cols: int) -> FusedUNet | None:
        size = (n_rows, n_cols)
        if size not in self.by_size:
            kernels = kernels_of(self.network, *size, self.workspace)
            if kernels is None and self._is_required:
                raise ConfigError(
                    f"no 16-bit kernels for a U-Net on {n_rows}x{n_cols} images: they need "
                    f"{SIDES}; use precision auto"
                )
            self.by_size[size] = kernels
        return self.by_size[size]

    def refresh(self) -> None:
        for fused in self.by_size.values():
            if fused is not None:
                fused.set_weights(self.network)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image, mean, std = measured.magnitude, measured.mean, measured.std
        fused = self._kernels(image.shape[-2], image.shape[-1])
        if fused is None:
            return self._viewed[0].reconstruct(measured)
        return Reconstruction(fused(image, mean, std, measured.n_images), mean, std)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return peak_bytes(self.network.n_channels, n_coils, n_rows, n_cols)
