"""NIfTI volumes, cut along one anatomical axis."""

import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32

from kscout.errors import DataError

Plane = Literal["axial", "coronal", "sagittal"]

_AXES: dict[Plane, int] = {"sagittal": 0, "coronal": 1, "axial": 2}


def read_nifti(
    path: Path, plane: Plane = "axial"
) -> tuple[Float32[np.ndarray, "slice row col"], str]:
    """Return the slices of a volume in radiological view, and an empty acquisition.

    The volume is brought to its closest canonical orientation first, so that `plane` means the
    same for every file. Slices go from right, back or bottom; the head's top or front is up.
    """
    try:
        import nibabel
    except ImportError as error:
        raise DataError(
            f"{path} is NIfTI, which needs nibabel: pip install 'kscout[formats]'"
        ) from error
    try:
        image = nibabel.as_closest_canonical(nibabel.load(path))
        data = np.asarray(image.dataobj, dtype=np.float32)
    except (OSError, EOFError, ValueError, TypeError, zlib.error, _file_error()) as error:
        raise DataError(
            f"{path} cannot be read as NIfTI ({error}); copy it again, or leave it out with "
            "--skip-bad"
        ) from error
    while data.ndim > 3 and data.shape[-1] == 1:
        data = data[..., 0]
    if data.ndim != 3:
        raise DataError(
            f"{path} has shape {data.shape} instead of three axes; split a series into one file "
            "per volume, or leave it out with --skip-bad"
        )
    axis = _AXES[plane]
    first, second = (other for other in range(3) if other != axis)
    return data.transpose(axis, second, first)[:, ::-1, ::-1], ""


def _file_error() -> type[Exception]:
    from nibabel.filebasedimages import ImageFileError

    return ImageFileError
