"""What was measured of a batch of images: the only thing that a reconstruction may look at."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import magnitude, normalize_with, statistics
from kscout.physics.sampling import apply_mask
from kscout.shapes import one_line

Summary = tuple[Float[Tensor, "batch row col"], Float[Tensor, " batch"], Float[Tensor, " batch"]]
"""Magnitude of the zero-filled images, and its mean and standard deviation."""


@final
@dataclass(frozen=True, repr=False)
class Measurement:
    """Masked k-space of a batch of images, in the image domain, with what is derived from it.

    The zero-filled image x = F^-1 M y, with k-space y, column mask M and the unitary transform F,
    holds all that was measured: `kspace` is one transform away. Derived tensors are computed at
    first use and kept, and gradients flow through them.
    """

    zero_filled: Complex[Tensor, "batch coil row col"]
    """Inverse transform of the masked k-space."""
    mask: Bool[Tensor, "batch col"]
    """True where a column is measured."""
    n_images: Int[Tensor, ""] | None = None
    """A count on the device: images from there on are padding. None means that all count."""
    summary: Summary | None = None
    """Magnitude, mean and standard deviation, where a kernel has computed them already."""
    maps: Complex[Tensor, "batch coil row col"] | None = None
    """Sensitivities that the reconstructor found at the start (`Reconstructor.calibrate`)."""

    __repr__ = one_line

    @classmethod
    def of(
        cls, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> "Measurement":
        """Measure the columns of a mask, of k-space that may hold more."""
        return cls(ifft2c(apply_mask(kspace, mask)), mask)

    def __len__(self) -> int:
        return self.mask.shape[0]

    @cached_property
    def _summary(self) -> Summary:
        if self.summary is not None:
            return self.summary
        image = magnitude(self.zero_filled)
        return image, *statistics(image)

    @property
    def magnitude(self) -> Float[Tensor, "batch row col"]:
        """Root of the sum of squares of the zero-filled images over coils."""
        return self._summary[0]

    @property
    def mean(self) -> Float[Tensor, " batch"]:
        """Mean of `magnitude`."""
        return self._summary[1]

    @property
    def std(self) -> Float[Tensor, " batch"]:
        """Standard deviation of `magnitude`."""
        return self._summary[2]

    @property
    def normalized(self) -> Float[Tensor, "batch row col"]:
        """`magnitude` normalized by its own statistics, clamped to ±6."""
        return normalize_with(*self._summary)

    @property
    def kspace(self) -> Complex[Tensor, "batch coil row col"]:
        """The measured k-space; columns that are not measured are zero."""
        return apply_mask(fft2c(self.zero_filled), self.mask)
