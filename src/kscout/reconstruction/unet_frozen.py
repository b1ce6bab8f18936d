"""Views of a trained U-Net for inference: the same images up to rounding, in less time."""

from typing import TYPE_CHECKING, final

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.layers.unet import peak_bytes
from kscout.reconstruction.unet_fused import FusedUNet
from kscout.reconstruction.unet_inference import InferenceUNet

if TYPE_CHECKING:
    from kscout.reconstruction.unet import UNet


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

    def differentiable(self) -> "UNet":
        return self._viewed[0]

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image = self.network(measured.normalized[:, None])[:, 0]
        return Reconstruction(image, measured.mean, measured.std)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return peak_bytes(self.network.n_channels, n_coils, n_rows, n_cols)


@final
class HalfPrecisionUNet(Reconstructor):
    """A frozen U-Net on CUDA through fused 16-bit kernels; statistics and sums are in 32 bit.

    One caller uses it at a time, whatever the size of its images: all share one workspace.

    Args:
        unet: what it is a view of.
        n_rows: rows of the images to expect; kernels for others are built at first use.
        n_cols: columns of these.
    """

    precision = "fp16"

    def __init__(self, unet: "UNet", *, n_rows: int, n_cols: int) -> None:
        super().__init__()
        self.protocol = unet.protocol
        self.network = unet.network
        self._viewed = [unet]
        first = FusedUNet(unet.network, n_rows, n_cols)
        self.fused = {(n_rows, n_cols): first}
        self.workspace = first.workspace

    def refresh(self) -> None:
        for fused in self.fused.values():
            fused.set_weights(self.network)

    def differentiable(self) -> "UNet":
        return self._viewed[0]

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image, mean, std = measured.magnitude, measured.mean, measured.std
        size = (image.shape[-2], image.shape[-1])
        if size not in self.fused:
            self.fused[size] = FusedUNet(self.network, *size, self.workspace)
        found = self.fused[size](image, mean, std, measured.n_images)
        return Reconstruction(found, mean, std)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return peak_bytes(self.network.n_channels, n_coils, n_rows, n_cols)
