"""The simplest reconstruction: columns that are not measured count as zero."""

from typing import final

from jaxtyping import Bool, Complex
from torch import Tensor

from kscout.core import Reconstruction, Reconstructor
from kscout.physics.normalization import magnitude, normalize


@final
class ZeroFilled(Reconstructor):
    """Takes the magnitude of the zero-filled image, normalized by its own statistics."""

    def from_zero_filled(
        self,
        zero_filled: Complex[Tensor, "batch coil row col"],
        mask: Bool[Tensor, "batch col"],
    ) -> Reconstruction:
        # Clamped like the U-Net's input: Paper protocol, whose zero-filled scores are of this.
        return Reconstruction(*normalize(magnitude(zero_filled)))
