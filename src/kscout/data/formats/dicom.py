"""DICOM series: one folder of slices each, sorted by their position in the patient."""

from pathlib import Path
from typing import Any

import numpy as np

from kscout.data.formats import (
    BYTES_PER_PIXEL,
    LARGEST_DEFLATION,
    Scan,
    Stack,
    check_memory,
    check_size,
    printable,
    reading,
    require,
)
from kscout.errors import DataError
from kscout.names import FORMATS

_DEFLATED = "1.2.840.10008.1.2.1.99"
"""The transfer syntax of which pydicom unpacks the whole file, whatever comes out."""


_TOLD = 3
"""Series of a folder that are named where there are several."""


def is_dicom(path: Path) -> bool:
    """Say whether something is a DICOM file, by its name or, whatever that is, by magic bytes."""
    # A DICOMDIR lists the files of a medium, and has no images.
    if not path.is_file() or path.name.upper() == "DICOMDIR":
        return False
    if path.suffix.lower() in FORMATS["dicom"].suffixes:
        return True
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def dicom_files(place: Path) -> list[Path]:
    """Return the DICOM files that lie directly in a folder, sorted by name; or the one file."""
    if place.is_file():
        return [place]
    return sorted(path for path in place.iterdir() if path.name[0] != "." and is_dicom(path))


def read_dicom_series(folder: Path) -> Scan:
    """Return the slices of a series, and its description as the acquisition."""
    files = dicom_files(folder)
    check_memory(folder, sum(path.stat().st_size for path in files))
    slices = [_read_file(path) for path in files]
    series: dict[str, list[Any]] = {}
    for data in slices:
        series.setdefault(str(getattr(data, "SeriesInstanceUID", "")), []).append(data)
    if len(series) > 1:
        told = [_told(own) for own in series.values()]
        more = ", ..." if len(told) > _TOLD else ""
        raise DataError(
            f"{folder} mixes {len(series)} series ({', '.join(told[:_TOLD])}{more}); put each into "
            "a folder of its own"
        )
    slices.sort(key=_position)
    frames = [_pixels(data) for data in slices]
    sizes = sorted({frame.shape[-2:] for frame in frames})
    if len(sizes) != 1:
        raise DataError(
            f"{folder} has slices of {len(sizes)} sizes ({sizes[0]}, {sizes[1]}); move those of "
            "one size into a folder of their own"
        )
    spacings = {_spacing(data) for data in slices}
    return Scan(
        np.concatenate(frames),
        str(getattr(slices[0], "SeriesDescription", "")),
        spacings.pop() if len(spacings) == 1 else None,
    )


def _told(series: list[Any]) -> str:
    """Name a series by its description and its files."""
    name = printable(str(getattr(series[0], "SeriesDescription", ""))) or "unnamed"
    first = printable(Path(str(series[0].filename)).name)
    if len(series) == 1:
        return f"{name!r}: {first}"
    return f"{name!r}: {len(series)} files from {first}"


def _read_file(path: Path) -> Any:  # noqa: ANN401 - pydicom data sets are dynamic
    pydicom = require("dicom", path)
    with reading(path, "DICOM"):
        try:
            meta = pydicom.filereader.read_file_meta_info(path)
            if meta.get("TransferSyntaxUID") == _DEFLATED:
                check_memory(path, LARGEST_DEFLATION * path.stat().st_size // BYTES_PER_PIXEL)
            return pydicom.dcmread(path)
        # Its own message advises on an argument that nobody can give here.
        except pydicom.errors.InvalidDicomError as error:
            raise DataError(
                f"{path} cannot be read as DICOM (the mark DICM is missing); rename it if it is "
                "something else, or export it from its source again"
            ) from error


def _spacing(data: Any) -> tuple[float, float] | None:  # noqa: ANN401 - pydicom data sets are dynamic
    """Return the spacing of rows and of columns; the frames of one file may share it."""
    groups = data.get("SharedFunctionalGroupsSequence") or [data]
    measures = groups[0].get("PixelMeasuresSequence") or [data]
    found = measures[0].get("PixelSpacing")
    return None if found is None or len(found) != 2 else (float(found[0]), float(found[1]))


def _position(data: Any) -> tuple[float, int]:  # noqa: ANN401 - pydicom data sets are dynamic
    """Order slices along their common normal; by instance number where there is no position."""
    number = int(getattr(data, "InstanceNumber", None) or 0)
    if "ImagePositionPatient" not in data or "ImageOrientationPatient" not in data:
        return 0.0, number
    orientation = np.asarray(data.ImageOrientationPatient, dtype=np.float64)
    normal = np.cross(orientation[:3], orientation[3:])
    return float(normal @ np.asarray(data.ImagePositionPatient, dtype=np.float64)), number


def _pixels(data: Any) -> Stack:  # noqa: ANN401 - pydicom data sets are dynamic
    path = Path(str(data.filename))
    with reading(path, "DICOM images", advice="convert it to an uncompressed transfer syntax"):
        frames = int(getattr(data, "NumberOfFrames", None) or 1)
        shape = (frames, int(data.Rows), int(data.Columns))
        check_size(path, shape, np.dtype(f"u{max(int(data.BitsAllocated) // 8, 1)}"))
        pixels = np.asarray(data.pixel_array, dtype=np.float32)
    if int(getattr(data, "SamplesPerPixel", 1)) != 1 or pixels.ndim not in (2, 3):
        raise DataError(
            f"{path} has pixels of shape {pixels.shape} instead of gray values; convert "
            "the series to gray values"
        )
    slope = float(getattr(data, "RescaleSlope", 1) or 1)
    intercept = float(getattr(data, "RescaleIntercept", 0) or 0)
    scaled = pixels * np.float32(slope) + np.float32(intercept)
    return scaled if scaled.ndim == 3 else scaled[None]
