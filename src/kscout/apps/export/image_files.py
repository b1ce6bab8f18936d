"""Images of one volume as fastMRI's HDF5, NIfTI, or DICOM; files are written atomically."""

import gzip
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

import h5py
import numpy as np
from jaxtyping import Bool, Float32

from kscout.data.manifest import VolumeRecord
from kscout.errors import ConfigError
from kscout.files import written_whole
from kscout.names import ImageFormat

_SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
_LEVELS = 65535


@final
@dataclass(frozen=True)
class ExportedVolume:
    """The content of the files of one volume."""

    images: Float32[np.ndarray, "slice row col"]
    masks: Bool[np.ndarray, "slice col"]
    """Measured columns of each image."""
    record: VolumeRecord
    about: Mapping[str, str]
    """Description of the reconstruction and the policy."""

    @property
    def spacing_mm(self) -> tuple[float, float] | None:
        """Distance of rows, and of columns; None if unknown."""
        geometry = self.record.geometry
        return None if geometry is None else geometry.stored_mm

    @property
    def slice_mm(self) -> float | None:
        """Distance of neighboring slices; None if unknown or not constant."""
        geometry, steps = self.record.geometry, set(np.diff(self.record.slices).tolist())
        known = None if geometry is None else geometry.slice_mm
        if known is None or len(steps) > 1:
            return None
        return known * (steps.pop() if steps else 1)

    @property
    def summary(self) -> str:
        return f"kscout: {self.about['reconstruction']}, {self.about['policy']}; research only"


def write_fastmri(path: Path, volume: ExportedVolume) -> None:
    """Write `reconstruction`, slice x row x column, in the format of fastMRI's evaluation."""
    with written_whole(path) as aside, h5py.File(aside, "w") as file:
        file.create_dataset("reconstruction", data=volume.images)
        file.create_dataset("mask", data=volume.masks)
        file.create_dataset("slices", data=np.array(volume.record.slices, dtype=np.int64))
        file.attrs["acquisition"] = volume.record.acquisition
        file.attrs["max"] = float(volume.images.max())
        file.attrs["norm"] = float(np.linalg.norm(volume.images))
        file.attrs["kscout"] = json.dumps(dict(volume.about))


def write_nifti(path: Path, volume: ExportedVolume) -> None:
    """Write an axial stack in radiological view, as `kscout data import` reads it."""
    nibabel = _package("nibabel", path)
    rows_mm, cols_mm = volume.spacing_mm or (1.0, 1.0)
    data = np.ascontiguousarray(volume.images[:, ::-1, ::-1].transpose(2, 1, 0))
    slice_mm = volume.slice_mm or 1.0
    image = nibabel.Nifti1Image(data, np.diag([cols_mm, rows_mm, slice_mm, 1.0]))
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = volume.summary.encode("ascii", "replace")[:79]
    with written_whole(path) as aside:
        # Without a time stamp, so that equal images give equal files.
        aside.write_bytes(gzip.compress(image.to_bytes(), mtime=0))


def write_dicom(folder: Path, volume: ExportedVolume) -> None:
    """Write a series of secondary captures, one file per slice, in 16 bit with a common scale."""
    pydicom = _package("pydicom", folder)
    low = min(0.0, float(volume.images.min()))
    # Rounded to the decimal in the file, and large enough that the maximum does not overflow.
    scale = (float(volume.images.max()) - low) / _LEVELS
    low, slope = (float(_decimal(x * (1 + 1e-6))) for x in (low, scale or 1.0))
    study, series = (_uid(pydicom, volume, word) for word in ("study", "series"))
    for image, number in zip(volume.images, volume.record.slices, strict=True):
        data = _capture(pydicom, volume, image.shape)
        data.StudyInstanceUID, data.SeriesInstanceUID = study, series
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = _uid(
            pydicom, volume, f"slice {number}"
        )
        data.InstanceNumber = number + 1
        data.RescaleIntercept, data.RescaleSlope, data.RescaleType = (
            *map(_decimal, (low, slope)),
            "US",
        )
        data.WindowCenter = _decimal(low + slope * _LEVELS / 2)
        data.WindowWidth = _decimal(slope * _LEVELS)
        levels = np.clip(np.rint((image - low) / slope), 0, _LEVELS)
        data.PixelData = levels.astype("<u2").tobytes()
        with written_whole(folder / f"{number:04d}.dcm") as aside:
            data.save_as(aside, enforce_file_format=True)


def _capture(pydicom: ModuleType, volume: ExportedVolume, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - a dataset of pydicom
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = _SECONDARY_CAPTURE
    data.Modality, data.ConversionType = "MR", "WSD"
    data.PatientName, data.PatientID, data.PatientBirthDate, data.PatientSex = "", "", "", ""
    data.StudyDate, data.StudyTime, data.StudyID, data.AccessionNumber = "", "", "", ""
    data.ReferringPhysicianName, data.SeriesNumber = "", 1
    data.ImageType = ["DERIVED", "SECONDARY"]
    data.Manufacturer, data.SeriesDescription = "kscout", _short(volume.record.acquisition)
    data.StudyDescription, data.DerivationDescription = _short(volume.record.volume), volume.summary
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.Rows, data.Columns = shape
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 0
    if volume.spacing_mm is not None:
        data.PixelSpacing = [f"{step:.9g}" for step in volume.spacing_mm]
    if volume.slice_mm is not None:
        data.SpacingBetweenSlices = f"{volume.slice_mm:.9g}"
    return data


def _decimal(value: float) -> str:
    """Return a number in at most 16 characters, the limit of DICOM."""
    return f"{value:.8e}"


def _short(text: str) -> str:
    """Return a text reduced to the characters and length of a DICOM description."""
    plain = "".join(c if c.isascii() and c.isprintable() and c != "\\" else "_" for c in text)
    return plain[:64]


def _uid(pydicom: ModuleType, volume: ExportedVolume, word: str) -> str:
    facts = [volume.record.split, volume.record.volume, *volume.about.values(), word]
    return str(pydicom.uid.generate_uid(entropy_srcs=[str(fact) for fact in facts]))


def _package(name: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"writing {path} needs {name}; pip install 'kscout[formats]'") from error


WRITERS: Mapping[ImageFormat, Callable[[Path, ExportedVolume], None]] = {
    "fastmri": write_fastmri,
    "nifti": write_nifti,
    "dicom": write_dicom,
}
SUFFIXES: Mapping[ImageFormat, str] = {"fastmri": ".h5", "nifti": ".nii.gz", "dicom": ""}
"""A DICOM series is a folder."""
