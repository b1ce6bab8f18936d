"""The scanner as pure functions on tensors: no files, weights or settings."""

from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.measurement import Measurement
from kscout.physics.normalization import magnitude
from kscout.physics.sampling import apply_mask, center_mask

__all__ = ["Measurement", "apply_mask", "center_mask", "fft2c", "ifft2c", "magnitude"]
