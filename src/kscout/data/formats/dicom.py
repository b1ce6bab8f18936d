"""DICOM series: one folder of slices each, sorted by their position in the patient."""

import zlib
from pathlib import Path
from types import ModuleType

import numpy as np

from kscout.data.formats import (
    ImageScan,
    Stack,
    check_deflated,
    check_memory,
    check_size,
    printable,
    reading,
    require,
)
from kscout.errors import DataError
from kscout.exports import lazily
from kscout.names import FORMATS

with lazily():
    from pydicom import Dataset

_DEFLATED = "1.2.840.10008.1.2.1.99"
"""Transfer syntax whose entire file is unpacked by pydicom before any check."""


_LISTED = 3
"""Number of series that the message about a mixed folder lists."""


def is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM, by its suffix or its magic bytes."""
    # A DICOMDIR lists the files of a medium and contains no images.
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
    """Return the DICOM files directly in a folder, sorted by name; or the single file."""
    if place.is_file():
        return [place]
    return sorted(path for path in place.iterdir() if path.name[0] != "." and is_dicom(path))


def read_dicom_series(folder: Path) -> ImageScan:
    """Return the slices of a series, with the series description as acquisition."""
    files = dicom_files(folder)
    check_memory(folder, sum(path.stat().st_size for path in files))
    slices = [_read_file(path) for path in files]
    series: dict[str, list[Dataset]] = {}
    for data in slices:
        series.setdefault(str(getattr(data, "SeriesInstanceUID", "")), []).append(data)
    if len(series) > 1:
        names = []
        for first, *others in series.values():
            name = printable(str(getattr(first, "SeriesDescription", ""))) or "unnamed"
            file = printable(Path(str(first.filename)).name)
            count = f"{1 + len(others)} files from " if others else ""
            names.append(f"{name!r}: {count}{file}")
        more = ", ..." if len(names) > _LISTED else ""
        raise DataError(
            f"{folder} mixes {len(series)} series ({', '.join(names[:_LISTED])}{more}); put each "
            "into a separate folder"
        )
    slices.sort(key=_position)
    frames = [_pixels(data) for data in slices]
    sizes = sorted({frame.shape[-2:] for frame in frames})
    if len(sizes) != 1:
        raise DataError(
            f"{folder} has slices of {len(sizes)} sizes ({sizes[0]}, {sizes[1]}); move those of "
            "one size into a separate folder"
        )
    spacings = {_spacing(data) for data in slices}
    return ImageScan(
        np.concatenate(frames),
        str(getattr(slices[0], "SeriesDescription", "")),
        spacings.pop() if len(spacings) == 1 else None,
        _slice_spacing(slices),
    )


def _read_file(path: Path) -> Dataset:
    pydicom = require("dicom", path)
    with reading(path, "DICOM"):
        try:
            meta = pydicom.filereader.read_file_meta_info(path)
            if meta.get("TransferSyntaxUID") == _DEFLATED:
                check_deflated(path, _end_of_meta(pydicom, path), -zlib.MAX_WBITS)
            return pydicom.dcmread(path)
        # pydicom's message recommends an argument that users cannot set here.
        except pydicom.errors.InvalidDicomError as error:
            raise DataError(
                f"{path} cannot be read as DICOM (the mark DICM is missing); rename it if it is "
                "something else, or export it from its source again"
            ) from error


def _end_of_meta(pydicom: ModuleType, path: Path) -> int:
    """Return the number of bytes before the dataset, which is deflated."""
    with path.open("rb") as file:
        file.seek(132)
        pydicom.filereader.read_dataset(file, False, True, stop_when=lambda tag, *_: tag >> 16 != 2)
        return file.tell()


def _spacing(data: Dataset) -> tuple[float, float] | None:
    """Return the spacing of rows and of columns; frames of one file may share it."""
    spacing = _measures(data).get("PixelSpacing")
    return None if spacing is None or len(spacing) != 2 else (float(spacing[0]), float(spacing[1]))


def _slice_spacing(slices: list[Dataset]) -> float | None:
    """Return the distance of sorted slices by their positions, or as the file states it."""
    steps = np.diff([_position(data)[0] for data in slices])
    if len(steps) and steps.min() > 0:
        is_constant = steps.max() < 1.01 * steps.min()
        return float(f"{steps.mean():.6g}") if is_constant else None
    stated = {_measures(data).get("SpacingBetweenSlices") for data in slices}
    return float(stated.pop() or 0) or None if len(stated) == 1 else None


def _measures(data: Dataset) -> Dataset:
    groups = data.get("SharedFunctionalGroupsSequence") or [data]
    return (groups[0].get("PixelMeasuresSequence") or [data])[0]


def _position(data: Dataset) -> tuple[float, int]:
    """Return the position along the slice normal; the instance number if there is no position."""
    number = int(getattr(data, "InstanceNumber", None) or 0)
    if "ImagePositionPatient" not in data or "ImageOrientationPatient" not in data:
        return 0.0, number
    orientation = np.asarray(data.ImageOrientationPatient, dtype=np.float64)
    normal = np.cross(orientation[:3], orientation[3:])
    return float(normal @ np.asarray(data.ImagePositionPatient, dtype=np.float64)), number


def _pixels(data: Dataset) -> Stack:
    path = Path(str(data.filename))
    with reading(path, "DICOM images", advice="convert it to an uncompressed transfer syntax"):
        missing = [name for name in ("Rows", "Columns", "BitsAllocated") if data.get(name) is None]
        if missing:
            raise DataError(
                f"{path} contains no image, or is cut off (no {', '.join(missing)}); export it "
                "from its source again"
            )
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
