"""The simplest reconstruction: unmeasured columns are zero."""

from typing import final

from jaxtyping import Complex
from torch import Tensor

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.physics.coils import calibrated, combine


@final
class ZeroFilled(Reconstructor):
    """The magnitude of the zero-filled image, normalized by its own statistics."""

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        # Clamped like the U-Net's input, as in the zero-filled scores of the paper.
        return Reconstruction(measured.normalized, measured.mean, measured.std)


@final
class WeightedZeroFilled(Reconstructor):
    """The zero-filled image, coils combined by ESPIRiT sensitivities of the central columns."""

    waits_for_device = True

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"]:
        return calibrated(measured.kspace, measured.mask)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        maps = self.calibrate(measured) if measured.maps is None else measured.maps
        return Reconstruction.of(combine(measured.zero_filled, maps).abs())
