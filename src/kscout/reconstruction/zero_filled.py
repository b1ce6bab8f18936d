"""The simplest reconstruction: columns that are not measured count as zero."""

from typing import final

from jaxtyping import Complex
from torch import Tensor

from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.physics.coils import calibrated, combine


@final
class ZeroFilled(Reconstructor):
    """Takes the magnitude of the zero-filled image, normalized by its own statistics."""

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        # Clamped like the U-Net's input: Paper protocol, whose zero-filled scores are of this.
        return Reconstruction(measured.normalized, measured.mean, measured.std)


@final
class WeightedZeroFilled(Reconstructor):
    """Weighs the coils by sensitivities that ESPIRiT finds in the central columns."""

    waits_for_device = True

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"]:
        return calibrated(measured.kspace, measured.mask)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        maps = self.calibrate(measured) if measured.maps is None else measured.maps
        return Reconstruction.of(combine(measured.zero_filled, maps).abs())
