"""DICOM files as small as they can be."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid


def write_dicom(path: Path, pixels: np.ndarray, *, syntax: str | None = None, **tags: Any) -> None:
    """Write one slice, in explicit little endian unless its file claims another syntax."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    # Of the name, so that the same call writes the same bytes.
    meta.MediaStorageSOPClassUID = MRImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[path.parent.name, path.name])
    data = pydicom.Dataset()
    data.file_meta = meta
    data.SOPClassUID, data.SOPInstanceUID = MRImageStorage, meta.MediaStorageSOPInstanceUID
    data.Rows, data.Columns = pixels.shape
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
    data.PixelData = pixels.astype(np.uint16).tobytes()
    data.SeriesInstanceUID = "1.2.3"
    for name, value in tags.items():
        setattr(data, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
