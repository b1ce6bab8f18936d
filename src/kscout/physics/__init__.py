"""The scanner as pure functions on tensors: no files, weights or settings."""

from kscout.physics.fourier import column_ramps, fft2c, ifft2c, ifft_rows
from kscout.physics.measurement import Measurement
from kscout.physics.normalization import (
    Normalized,
    denormalize,
    magnitude,
    normalize,
    normalize_with,
    statistics,
)
from kscout.physics.sampling import acquire, apply_mask, center_columns, center_mask

__all__ = [
    "Measurement",
    "Normalized",
    "acquire",
    "apply_mask",
    "center_columns",
    "center_mask",
    "column_ramps",
    "denormalize",
    "fft2c",
    "ifft2c",
    "ifft_rows",
    "magnitude",
    "normalize",
    "normalize_with",
    "statistics",
]
