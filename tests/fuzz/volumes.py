"""One valid file of every format that kscout imports."""

import io
import logging
from collections.abc import Callable
from pathlib import Path

import h5py
import nibabel
import numpy as np
import scipy.io

import mrd_files
import twix_files
from coil_data import coil_kspace
from dicom_files import write_dicom

logging.getLogger("pydicom").setLevel(logging.ERROR)

AXES = "row,col,coil,slice"
"""Names of the axes of arrays."""


def stack(seed: int = 0) -> np.ndarray:
    """Return 4 smooth positive images of 18 x 20 pixels."""
    rows, cols = np.mgrid[0:18, 0:20]
    return np.stack(
        [1 + np.sin(rows / (3 + k) + seed) * np.cos(cols / 4) for k in range(4)]
    ).astype(np.float32)


def kspace(seed: int = 0) -> np.ndarray:
    """Return 2 slices of 4 coils, with the axes that `AXES` names."""
    slices = coil_kspace(2, 4, 18, 20, seed=seed, noise=0.01).numpy()
    return slices.transpose(2, 3, 1, 0)


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["acquisition"] = "CORPD_FBK"
        file["reconstruction_esc"] = stack()


def _nifti(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(stack().transpose(), np.eye(4)), path)


def _dicom(path: Path) -> None:
    for number in range(3):
        place = {"ImagePositionPatient": [0, 0, 3 * number], "InstanceNumber": number + 1}
        place["ImageOrientationPatient"] = [1, 0, 0, 0, 1, 0]
        slice_path = path.with_name(f"{number}.dcm")
        write_dicom(slice_path, stack()[number] * 100, SeriesDescription="T2", **place)


def write_bart(path: Path, values: np.ndarray) -> None:
    """Write k-space with the axes that `AXES` names."""
    n_rows, n_cols, n_coils, n_slices = values.shape
    sizes = [n_rows, n_cols, 1, n_coils, *[1] * 9, n_slices, 1, 1]
    path.with_suffix(".hdr").write_text(f"# Dimensions\n{' '.join(map(str, sizes))}\n")
    path.with_suffix(".cfl").write_bytes(values.astype("<c8").tobytes(order="F"))


def _fastmri(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["kspace"] = kspace().transpose(3, 2, 0, 1)
        file["mask"] = np.ones(20)
        file["ismrmrd_header"] = mrd_files.header()


def _matlab(path: Path) -> None:
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"k": kspace()}, do_compression=True)
    # The text at the head tells the time of writing, and a case is the same bytes every time.
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(116) + buffer.getvalue()[116:])


IMAGES: dict[str, Callable[[Path], object]] = {
    "bad.h5": _hdf5,
    "bad.nii": _nifti,
    "bad.nii.gz": _nifti,
    "series/1.dcm": _dicom,
    "bad.npy": lambda path: np.save(path, stack()),
    "bad.npz": lambda path: np.savez(path, images=stack()),
}
"""What writes a volume of images, by the name of the file that is damaged then."""
RAW: dict[str, Callable[[Path], object]] = {
    "bad.cfl": lambda path: write_bart(path, kspace()),
    "bad.hdr": lambda path: write_bart(path, kspace()),
    "bad.h5": _fastmri,
    "bad.mrd": lambda path: mrd_files.write(path, mrd_files.lines()),
    "bad.dat": lambda path: twix_files.write(path, twix_files.blocks()),
    "bad.mat": _matlab,
}
"""The same for k-space."""
