"""NIfTI volumes, cut along one anatomical axis."""

import zlib
from pathlib import Path

import numpy as np

from kscout.data.formats import Stack, require
from kscout.errors import DataError
from kscout.names import Plane

_AXES: dict[Plane, int] = {"sagittal": 0, "coronal": 1, "axial": 2}


def load_canonical(
    path: Path, dtype: type[np.floating] | None = None
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return the values and voxel sizes (mm) of a volume, its axes right, front and up.

    Args:
        path: a `.nii` or `.nii.gz` file.
        dtype: of the values; by default what the file's scaling gives.
    """
    nibabel = require("nifti", path)
    from nibabel.filebasedimages import ImageFileError

    try:
        image = nibabel.as_closest_canonical(nibabel.load(path))
        values = np.asarray(image.dataobj, dtype=dtype)
    except (OSError, EOFError, ValueError, TypeError, zlib.error, ImageFileError) as error:
        raise DataError(f"{path} cannot be read as NIfTI ({error}); copy it again") from error
    return values, tuple(float(step) for step in image.header.get_zooms())


def read_nifti(path: Path, plane: Plane = "axial") -> tuple[Stack, str]:
    """Return the slices of a volume in radiological view, and an empty acquisition.

    Slices go from right, back or bottom; the head's top or front is up.

    Args:
        path: a `.nii` or `.nii.gz` file.
        plane: of the slices; means the same for every file, whatever its orientation.
    """
    data, _ = load_canonical(path, np.float32)
    while data.ndim > 3 and data.shape[-1] == 1:
        data = data[..., 0]
    if data.ndim != 3:
        raise DataError(
            f"{path} has shape {data.shape} instead of three axes; split a series into one file "
            "per volume"
        )
    axis = _AXES[plane]
    first, second = (other for other in range(3) if other != axis)
    return data.transpose(axis, second, first)[:, ::-1, ::-1], ""
