"""Views of a trained U-Net for inference: the same images up to rounding, in less time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

import torch

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.kernels.registry import SIDES, UNIT, Request, build, serving
from kscout.kernels.workspace import Workspace
from kscout.layers.unet import UNetNetwork, peak_bytes
from kscout.reconstruction.unet_fused import FusedUNet
from kscout.reconstruction.unet_inference import InferenceUNet

if TYPE_CHECKING:
    from kscout.reconstruction.unet import UNet

MakeKernels = Callable[[UNetNetwork, int, int, Workspace], FusedUNet | None]
"""Builds the kernels of a network for images of so many rows and columns, in a workspace."""


def has_kernels(network: UNetNetwork, device: torch.device) -> bool:
    """Return whether kernels serve a network on a device for images of some size."""
    least = UNIT << len(network.down_sample_layers)
    return serving("unet", _request(network, device, least, least)) == "cuda"


def kernels_where_served(
    network: UNetNetwork, n_rows: int, n_cols: int, workspace: Workspace
) -> FusedUNet | None:
    """Return kernels for images of a size, None where there are none."""

    def fused() -> FusedUNet | None:
        return FusedUNet(network, n_rows, n_cols, workspace)

    request = _request(network, workspace.device, n_rows, n_cols)
    return build("unet", request, {"cuda": fused, "torch": lambda: None})


def kernels_or_refusal(
    network: UNetNetwork, n_rows: int, n_cols: int, workspace: Workspace
) -> FusedUNet:
    """Return kernels for images of a size; refuse one that has none."""
    found = kernels_where_served(network, n_rows, n_cols, workspace)
    if found is None:
        raise ConfigError(
            f"no 16-bit kernels for a U-Net on {n_rows}x{n_cols} images: they need "
            f"{SIDES}; use precision auto"
        )
    return found


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
    """A frozen U-Net of the paper on a CPU, through `InferenceUNet`."""

    def __init__(self, unet: "UNet") -> None:
        super().__init__()
        self.protocol = unet.protocol
        self.network = InferenceUNet(unet.network)
        # In a list: its weights are not this module's own.
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
    """A frozen U-Net on CUDA through fused 16-bit kernels; statistics and sums are in 32 bit.

    Images of a size that kernels do not serve go through the plain network, in 32 bit; `precision`
    is that of images of the size to expect. One caller uses it at a time, whatever the size of its
    images: all share one workspace.

    Args:
        unet: what it is a view of.
        n_rows: rows of the images to expect; kernels for others are built at first use.
        n_cols: columns of these.
        make_kernels: builds them for a size; None where there are none.
    """

    def __init__(
        self,
        unet: "UNet",
        *,
        n_rows: int,
        n_cols: int,
        make_kernels: MakeKernels = kernels_where_served,
    ) -> None:
        super().__init__()
        self.protocol = unet.protocol
        self.network = unet.network
        self._viewed = [unet]
        self._make_kernels = make_kernels
        self.workspace = Workspace(next(unet.parameters()).device)
        self.by_size: dict[tuple[int, int], FusedUNet | None] = {}
        self.precision = "fp32" if self._kernels(n_rows, n_cols) is None else "fp16"

    def _kernels(self, n_rows: int, n_cols: int) -> FusedUNet | None:
        """Return those for images of a size, built where they are new."""
        size = (n_rows, n_cols)
        if size not in self.by_size:
            self.by_size[size] = self._make_kernels(self.network, *size, self.workspace)
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
