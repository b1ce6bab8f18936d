"""DICOM series: one folder of slices each, sorted by their position in the patient."""

from pathlib import Path
from typing import Any

import numpy as np

from kscout.data.formats import Stack, require
from kscout.errors import DataError
from kscout.names import FORMATS


def is_dicom(path: Path) -> bool:
    """Say whether a file is DICOM, by its name or, without one, by its magic bytes."""
    if path.suffix.lower() in FORMATS["dicom"].suffixes:
        return True
    if path.suffix and not path.suffix[1:].isdigit():
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def dicom_files(folder: Path) -> list[Path]:
    """Return the DICOM files that lie directly in a folder, sorted by name."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name[0] != "."]
    return sorted(path for path in files if is_dicom(path))


def read_dicom_series(folder: Path) -> tuple[Stack, str]:
    """Return the slices of a series, and its description as the acquisition."""
    slices = [_read_file(path) for path in dicom_files(folder)]
    series = {str(getattr(data, "SeriesInstanceUID", "")) for data in slices}
    if len(series) > 1:
        raise DataError(f"{folder} mixes {len(series)} series; put each into a folder of its own")
    slices.sort(key=_position)
    frames = [_pixels(data, folder) for data in slices]
    sizes = sorted({frame.shape[-2:] for frame in frames})
    if len(sizes) != 1:
        raise DataError(
            f"{folder} has slices of {len(sizes)} sizes ({sizes[0]}, {sizes[1]}); move those of "
            "one size into a folder of their own"
        )
    return np.concatenate(frames), str(getattr(slices[0], "SeriesDescription", ""))


def _read_file(path: Path) -> Any:  # noqa: ANN401 - pydicom data sets are dynamic
    pydicom = require("dicom", path)
    try:
        return pydicom.dcmread(path)
    except (OSError, EOFError, ValueError, pydicom.errors.InvalidDicomError) as error:
        raise DataError(f"{path} cannot be read as DICOM ({error}); copy it again") from error


def _position(data: Any) -> tuple[float, int]:  # noqa: ANN401 - pydicom data sets are dynamic
    """Order slices along their common normal; by instance number where there is no position."""
    number = int(getattr(data, "InstanceNumber", None) or 0)
    if "ImagePositionPatient" not in data or "ImageOrientationPatient" not in data:
        return 0.0, number
    orientation = np.asarray(data.ImageOrientationPatient, dtype=np.float64)
    normal = np.cross(orientation[:3], orientation[3:])
    return float(normal @ np.asarray(data.ImagePositionPatient, dtype=np.float64)), number


def _pixels(data: Any, folder: Path) -> Stack:  # noqa: ANN401 - pydicom data sets are dynamic
    name = Path(str(data.filename)).name
    try:
        pixels = np.asarray(data.pixel_array, dtype=np.float32)
    except (AttributeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"{folder / name} has pixels that cannot be read ({error}); convert the series to an "
            "uncompressed transfer syntax"
        ) from error
    if int(getattr(data, "SamplesPerPixel", 1)) != 1 or pixels.ndim not in (2, 3):
        raise DataError(
            f"{folder / name} has pixels of shape {pixels.shape} instead of gray values; convert "
            "the series to gray values"
        )
    slope = float(getattr(data, "RescaleSlope", 1) or 1)
    intercept = float(getattr(data, "RescaleIntercept", 0) or 0)
    scaled = pixels * np.float32(slope) + np.float32(intercept)
    return scaled if scaled.ndim == 3 else scaled[None]
