"""NIfTI volumes, cut along one anatomical axis."""

import zlib
from pathlib import Path

import numpy as np

from kscout.data.formats import ImageScan, check_deflated, check_size, require
from kscout.errors import DataError
from kscout.names import Plane

_AXES: dict[Plane, int] = {"sagittal": 0, "coronal": 1, "axial": 2}
_UNITS_MM = {"meter": 1000.0, "micron": 0.001}


def load_canonical(
    path: Path, dtype: type[np.floating] | None = None
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return the values and voxel sizes (mm) of a volume with axes right, front and up."""
    nibabel = require("nifti", path)
    image = nibabel.load(path)
    stored = image.get_data_dtype()
    if stored.kind not in "fiub":
        raise DataError(
            f"{path} holds {stored} of shape {image.shape} instead of real images; save "
            "magnitudes of complex images, and gray values of colored ones"
        )
    check_size(path, image.shape, stored)
    if path.suffix == ".gz":
        # nibabel reads no further than the last voxel, and the checksum is behind it.
        check_deflated(path, 0, 16 + zlib.MAX_WBITS)
    image = nibabel.as_closest_canonical(image)
    unit_mm = _UNITS_MM.get(image.header.get_xyzt_units()[0], 1.0)
    values = np.asarray(image.dataobj, dtype=dtype)
    return values, tuple(float(step) * unit_mm for step in image.header.get_zooms())


def read_nifti(path: Path, plane: Plane = "axial") -> ImageScan:
    """Return the slices of a volume in radiological view, whatever the orientation of the file.

    Slices run from right, back or bottom; the top or front of the head is up.
    """
    data, steps_mm = load_canonical(path, np.float32)
    while data.ndim > 3 and data.shape[-1] == 1:
        data = data[..., 0]
    if data.ndim < 3:
        raise DataError(
            f"{path} has shape {data.shape} instead of a volume of slices; put slices into one "
            "file, or save a single one as .npy"
        )
    if data.ndim != 3:
        raise DataError(
            f"{path} has shape {data.shape} instead of three axes; split a series into one file "
            "per volume"
        )
    axis = _AXES[plane]
    first, second = (other for other in range(3) if other != axis)
    images = data.transpose(axis, second, first)[:, ::-1, ::-1]
    # The header stores 32 bit, so that 0.9 mm is read as 0.89999998.
    rows_mm, cols_mm, slice_mm = (float(f"{steps_mm[x]:.6g}") for x in (second, first, axis))
    return ImageScan(images, spacing_mm=(rows_mm, cols_mm), slice_mm=slice_mm)
