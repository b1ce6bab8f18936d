"""Where images come from: what is made, which files are read, and the paper's rules."""

from collections.abc import Mapping
from typing import Any, Literal

from kscout.errors import unknown_name
from kscout.names.entries import FormatEntry, SourceEntry

SOURCES: Mapping[str, SourceEntry] = {
    "knee": SourceEntry(
        "kscout.data.makers.knee:draw_knee_volume",
        "procedural knees; structured ones are engineered to reward adaptivity",
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
        options=("key",),
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
        options=("key",),
    ),
}

RAW_FORMATS: Mapping[str, FormatEntry] = {
    "fastmri": FormatEntry(
        "kscout.data.formats.hdf5_kspace:read_hdf5_kspace",
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
"""Formats of k-space, which `data import --raw` reads."""

ImageFormat = Literal["fastmri", "nifti", "dicom"]
"""What `data export` writes."""

TARGETS = ("rss", "weighted")
"""What scores compare with, of k-space of coils: the root of their sum of squares, or their
combination weighted by sensitivities."""


COIL_MAPS = ("loops", "measured")
"""What coils that are simulated hear: loops of wire by Biot and Savart's law, or sensitivities that
were measured around a brain."""


def check_target(name: str) -> None:
    """Refuse a rule of targets that is not there."""
    if name not in TARGETS:
        raise unknown_name("target", name, list(TARGETS))


Plane = Literal["axial", "coronal", "sagittal"]
"""How a volume is cut into slices."""

Origin = Literal["center", "corner", "plain", "image"]
"""Where arrays of k-space have the centers of k-space and image: both in the middle, both at the
first index, or as `numpy.fft.fft2` makes k-space of an image that has its center in the middle; or
arrays are such images, complex."""

PhaseEncoding = Literal["columns", "rows"]
"""Which way of an image a scanner encodes by phase: what a store calls its columns."""

IMPORT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "knee": {"size": 128, "center_volume": True, "sample_rate": 0.5},
    "brain": {"size": 256, "pad": 384, "sample_rate": 0.2},
}
"""The paper's rules for fastMRI's volumes, as settings of an import."""
