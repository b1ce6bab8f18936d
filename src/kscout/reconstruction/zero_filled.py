"""The simplest reconstruction: columns that are not measured count as zero."""

from typing import final

from kscout.core import Measurement, Reconstruction, Reconstructor


@final
class ZeroFilled(Reconstructor):
    """Takes the magnitude of the zero-filled image, normalized by its own statistics."""

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        # Clamped like the U-Net's input: Paper protocol, whose zero-filled scores are of this.
        return Reconstruction(measured.normalized, measured.mean, measured.std)
