"""One valid volume of every format that kscout imports, and damage of a kind that each may have."""

import io
import logging
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pydicom
from numpy.lib import format as npy
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from dicom_files import write_dicom
from fuzz.damage import damage_bytes, misplace

logging.getLogger("pydicom").setLevel(logging.ERROR)

HUGE = [2**16, 2**24, 2**31, 2**45]


def stack(seed: int = 0) -> np.ndarray:
    """Return 4 smooth positive images of 18 x 20 pixels."""
    rows, cols = np.mgrid[0:18, 0:20]
    return np.stack(
        [1 + np.sin(rows / (3 + k) + seed) * np.cos(cols / 4) for k in range(4)]
    ).astype(np.float32)


def numpy_stack(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.npy"
    roll = draw.randrange(4)
    if roll == 0:
        np.save(path, stack())
        return damage_bytes(draw, path)
    if roll == 1:
        np.save(path, stack())
        return misplace(draw, path)
    if roll == 2:
        shape = draw.choice(
            [(4, 0, 0), (0,), (), (-1, 4, 4), (3,) * 40, (4, draw.choice(HUGE), 18)]
        )
        kind = draw.choice(["<f4", "<f8", "|O", "<c8", "<U9", "<M8[s]", "|V8", "<i8", "|b1"])
        header = io.BytesIO()
        npy.write_array_header_2_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
        path.write_bytes(header.getvalue() + draw.randbytes(draw.choice((0, 100, 5760))))
        return f"bad.npy header {kind} {str(shape)[:30]}"
    values = stack()
    values[draw.randrange(4)] = fill = draw.choice([np.nan, np.inf, -np.inf, -1, 0, 3e38, 1e-45])
    np.save(path, values.astype(draw.choice([np.float32, np.float64])))
    return f"bad.npy pixels {fill}"


def numpy_archive(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.npz"
    np.savez(path, images=stack())
    return (damage_bytes if draw.random() < 0.5 else misplace)(draw, path)


def hdf5(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.h5"
    change = draw.choice([None, None, _odd_type, _odd_attribute])
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["acquisition"] = "CORPD_FBK"
        if change is None:
            file["reconstruction_esc"] = stack()
        else:
            change(draw, file)
    if change is None:
        return (damage_bytes if draw.random() < 0.75 else misplace)(draw, path)
    return f"bad.h5 {change.__name__}"


def _odd_type(draw: random.Random, file: h5py.File) -> None:
    values: Any = draw.choice(
        [
            np.zeros((4, 18, 20), "c8"),
            np.zeros((4, 18, 20), "S4"),
            np.zeros((4, 18), "f4"),
            np.zeros((4, 0, 20), "f4"),
            np.float32(3),
            "text",
            np.full((4, 18, 20), np.nan),
            np.zeros((4, 18, 20), [("a", "f4")]),
            h5py.Empty("f4"),
        ]
    )
    file["reconstruction_esc"] = values


def _odd_attribute(draw: random.Random, file: h5py.File) -> None:
    file["reconstruction_esc"] = stack()
    file.attrs["acquisition"] = draw.choice(
        [
            np.bytes_(b"\xff\xfe"),
            np.zeros((3, 3)),
            "",
            np.nan,
            "x\x1b[31m",
            "[/x]",
            h5py.Empty("S3"),
        ]
    )


_NIFTI_FIELDS = {0: "i", 40: "8h", 70: "h", 72: "h", 76: "8f", 108: "f", 112: "f", 116: "f"}
_NIFTI_FIELDS |= {252: "h", 254: "h", 280: "4f", 296: "4f", 344: "4s"}


def nifti(draw: random.Random, folder: Path) -> str:
    suffix = draw.choice((".nii", ".nii.gz"))
    path = folder / f"bad{suffix}"
    nibabel.save(nibabel.Nifti1Image(stack().transpose(), np.eye(4)), path)
    roll = draw.random()
    if suffix == ".nii" and roll < 0.6:
        content = bytearray(path.read_bytes())
        place = draw.choice(list(_NIFTI_FIELDS))
        form = _NIFTI_FIELDS[place]
        count, kind = int(form[:-1] or 1), form[-1]
        if kind == "s":
            content[place : place + 4] = draw.randbytes(4)
        for index in range(count if kind != "s" else 0):
            if draw.random() < 0.5:
                number = {
                    "h": draw.choice((0, -1, 1, 7, 32767, -32768, 300)),
                    "i": draw.choice((0, -1, 2**31 - 1)),
                    "f": draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e38, 1e-40, 3e9)),
                }[kind]
                at = place + index * struct.calcsize(kind)
                struct.pack_into(f"<{kind}", content, at, number)
        path.write_bytes(content)
        return f"{path.name} header at {place}"
    return (damage_bytes if roll < 0.9 else misplace)(draw, path)


_DICOM_VALUES: dict[str, list[Any]] = {
    "Rows": [0, 1, 65535, None],
    "Columns": [0, 65535, 19],
    "BitsAllocated": [0, 1, 7, 8, 32, 65535],
    "SamplesPerPixel": [0, 3, 65535],
    "PixelRepresentation": [1, 9],
    "PhotometricInterpretation": ["RGB", "PALETTE COLOR", "", "é"],
    "NumberOfFrames": [0, -1, 10**9, 99999999999],
    "InstanceNumber": [None, "", -1, 2**31],
    "ImagePositionPatient": [[], [1, 2], [float("nan")] * 3, None, [1e300] * 3],
    "ImageOrientationPatient": [[], [0] * 6, [float("inf")] * 6, [1, 2]],
    "SeriesInstanceUID": ["9.9", ""],
    "SeriesDescription": ["[/x]", "x" * 60, "\x1b[31m", ""],
    "RescaleSlope": [float("nan"), 0, 1e300, float("inf")],
    "RescaleIntercept": [float("nan"), -1e6],
    "PixelData": [b"", b"\0\0", bytes(2**12)],
    "SpecificCharacterSet": ["ISO 9999", "\\\\"],
}


def dicom(draw: random.Random, folder: Path) -> str:
    series, suffix = folder / "series", draw.choice((".dcm", ""))
    index, roll, done = draw.randrange(3), draw.random(), ""
    for number in range(3):
        path = series / f"{number}{suffix}"
        place = {"ImagePositionPatient": [0, 0, 3 * number], "InstanceNumber": number + 1}
        place["ImageOrientationPatient"] = [1, 0, 0, 0, 1, 0]
        write_dicom(path, stack()[number] * 100, SeriesDescription="T2", **place)
        if number == index and roll < 0.6:
            data = pydicom.dcmread(path)
            done = _change_tag(draw, data)
            with pydicom.config.disable_value_validation():
                data.save_as(path)
    if not done:
        done = (damage_bytes if roll < 0.9 else misplace)(draw, series / f"{index}{suffix}")
    return f"dicom {done}"


def _change_tag(draw: random.Random, data: Dataset) -> str:
    if draw.random() < 0.1:
        # Sequences in sequences, deeper than a recursive reader likes.
        inner = Dataset()
        for _ in range(60):
            outer = Dataset()
            outer.ReferencedImageSequence = Sequence([inner])
            inner = outer
        data.ReferencedImageSequence = Sequence([inner])
        return "nested"
    name = draw.choice(list(_DICOM_VALUES))
    with pydicom.config.disable_value_validation():
        if draw.random() < 0.25 and name in data:
            delattr(data, name)
            return f"without {name}"
        value = draw.choice(_DICOM_VALUES[name])
        if value == [] or (isinstance(value, list) and not all(np.isfinite(value))):
            value = None if value == [] else [str(number) for number in value]
        try:
            setattr(data, name, value)
        except (ValueError, TypeError, OverflowError):
            delattr(data, name)
            return f"without {name}"
    return f"{name} = {str(value)[:30]}"


FORMATS: dict[str, Callable[[random.Random, Path], str]] = {
    "hdf5": hdf5,
    "nifti": nifti,
    "dicom": dicom,
    "npy": numpy_stack,
    "npz": numpy_archive,
}
