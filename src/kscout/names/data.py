"""Sources of images, file formats, and the paper's rules."""

from collections.abc import Mapping
from typing import Literal, get_args

from kscout.errors import unknown_name
from kscout.names.table import FormatEntry, SourceEntry

SOURCES: Mapping[str, SourceEntry] = {
    "knee": SourceEntry(
        "kscout.data.makers.knee:draw_knee_volume",
        "procedural knees; --variant structured rewards adaptive sampling by design",
        variants=("realistic", "structured"),
        paper_slices=(6959, 1779, 1715),
        paper_slices_per_volume=18,
    ),
    "brain": SourceEntry(
        "kscout.data.makers.brain:draw_brain_volume",
        "procedural brains",
        size=256,
        paper_slices=(11312, 4372, 2832),
    ),
    "heads": SourceEntry(
        "kscout.data.makers.heads:draw_head_volume",
        "slices cut from real heads",
        needs_sources=True,
    ),
}

FORMATS: Mapping[str, FormatEntry] = {
    "hdf5": FormatEntry(
        "kscout.data.formats.hdf5:read_hdf5",
        "fastMRI's HDF5",
        suffixes=(".h5", ".hdf5"),
        options=("key", "axes"),
    ),
    "nifti": FormatEntry(
        "kscout.data.formats.nifti:read_nifti",
        "NIfTI",
        suffixes=(".nii", ".nii.gz"),
        options=("plane",),
        needs="nibabel",
    ),
    "dicom": FormatEntry(
        "kscout.data.formats.dicom:read_dicom_series",
        "DICOM",
        suffixes=(".dcm", ".dicom", ".ima"),
        needs="pydicom",
        is_series=True,
    ),
    "numpy": FormatEntry(
        "kscout.data.formats.numpy_array:read_numpy",
        "NumPy",
        suffixes=(".npy", ".npz"),
        options=("key", "axes"),
    ),
}

RAW_FORMATS: Mapping[str, FormatEntry] = {
    "fastmri": FormatEntry(
        "kscout.data.formats.arrays:read_hdf5_kspace",
        "k-space in HDF5",
        suffixes=(".h5", ".hdf5", ".mrd"),
        options=("key", "axes", "header"),
    ),
    "bart": FormatEntry(
        "kscout.data.formats.bart:read_bart",
        "BART's k-space",
        suffixes=(".cfl",),
        options=("axes",),
    ),
    "twix": FormatEntry(
        "kscout.data.formats.twix:read_twix", "raw data of a Siemens scanner", suffixes=(".dat",)
    ),
    "array": FormatEntry(
        "kscout.data.formats.arrays:read_named",
        "an array of k-space",
        suffixes=(".npy", ".npz", ".mat"),
        options=("key", "axes"),
    ),
}
"""K-space formats of `data import --raw`."""

ImageFormat = Literal["fastmri", "nifti", "dicom"]
"""File formats of `data export`."""

Target = Literal["rss", "weighted"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""Targets of k-space stores: the root of the sum of squares of all coils, or their combination
weighted by sensitivities."""


def check_target(name: str) -> None:
    """Raise an error for an unknown target rule."""
    if name not in TARGETS:
        raise unknown_name("target", name, list(TARGETS))


Plane = Literal["axial", "coronal", "sagittal"]
"""Slice planes of a volume."""

Origin = Literal["center", "corner", "plain", "image"]
"""Centers of k-space and image in arrays of k-space: both in the middle, both at the first index,
or as `numpy.fft.fft2` returns for an image centered in the middle; or arrays are complex images
with the center in the middle."""

PhaseEncoding = Literal["columns", "rows"]
"""Phase-encoding axes, which become the columns of a store."""

IMPORT_PRESETS: Mapping[str, Mapping[str, object]] = {
    "knee": {"size": 128, "center_volume": True, "sample_rate": 0.5},
    "brain": {"size": 256, "pad": 384, "sample_rate": 0.2},
}
"""The paper's rules for fastMRI's volumes, as settings of an import."""
