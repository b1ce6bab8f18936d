"""k-space in arrays of NumPy, MATLAB and HDF5 with axes named by the user."""

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io

from kscout.data.formats import check_expansion, check_memory, listed
from kscout.data.formats.hdf5 import check_chunks, datasets, find_dataset
from kscout.data.formats.numpy_array import only_member, read_header
from kscout.data.formats.raw import RawScan, Reopened, check_axes, check_declared, named_scan
from kscout.errors import DataError


def read_named(path: Path, key: str | None = None, axes: tuple[str, ...] | None = None) -> RawScan:
    """Return the k-space of an array.

    Args:
        path: a `.npy`, `.npz`, `.mat` or HDF5 file.
        key: name of the array if the file contains several.
        axes: names of the array's axes, in the order of the program that saved it.
    """
    if axes is None:
        raise DataError(
            f"{path} does not describe the axes of its k-space; name them, as in --axes "
            "slice,coil,row,col"
        )
    if h5py.is_hdf5(path):
        return _read_hdf5(path, key, axes)
    if path.suffix.lower() == ".mat":
        return named_scan(path, _read_matlab(path, key, axes), axes)
    return named_scan(path, _read_numpy(path, key, axes), axes)


def hdf5_scan(path: Path, name: str, axes: tuple[str, ...], **known: Any) -> RawScan:  # noqa: ANN401
    """Return the k-space of a dataset; its file is opened again for each read."""
    names = name.split(",")
    with h5py.File(path, "r") as file:
        sets = [_dataset(file, path, one) for one in names]
        shape, dtype = sets[0].shape, sets[0].dtype
        if len(sets) > 1:
            _check_pair(path, name, sets)
            dtype = np.dtype(np.complex64)

    def look(index: Any) -> np.ndarray:  # noqa: ANN401 - any index
        with h5py.File(path, "r") as file:
            first, *second = (file[one][index] for one in names)
            return first + 1j * second[0] if second else first

    return named_scan(path, Reopened(look, shape, dtype), axes, **known)


def _check_pair(path: Path, name: str, sets: list[h5py.Dataset]) -> None:
    alike = {(data.shape, data.dtype.kind in "fiu") for data in sets}
    if len(sets) != 2 or alike != {(sets[0].shape, True)}:
        raise DataError(
            f"{path} does not hold {name} as two arrays of real numbers and one shape; name the "
            "real and the imaginary part with --key"
        )


def _dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    data = find_dataset(file, path, name)
    if data is None or data.shape is None:
        raise DataError(
            f"{path} has no {name} (it has: {listed(datasets(file))}); name its k-space with --key"
        )
    check_declared(path, data.shape, data.dtype)
    check_chunks(data, path)
    return data


def _read_hdf5(path: Path, key: str | None, axes: tuple[str, ...]) -> RawScan:
    with h5py.File(path, "r") as file:
        keys = list(datasets(file))
    if key is None and len(keys) != 1:
        raise DataError(f"{path} holds {listed(keys)}; name its k-space with --key")
    # MATLAB varies the first axis fastest, and HDF5 the last.
    is_matlab = path.suffix.lower() == ".mat"
    return hdf5_scan(path, key or keys[0], axes[::-1] if is_matlab else axes)


def _read_matlab(path: Path, key: str | None, axes: tuple[str, ...]) -> np.ndarray:
    with path.open("rb") as file:
        held = {name: (shape, kind) for name, shape, kind in scipy.io.whosmat(file)}
    arrays = [name for name, (_, kind) in held.items() if kind in ("single", "double")]
    name = key or (arrays[0] if len(arrays) == 1 else "")
    if name not in arrays:
        raise DataError(f"{path} holds the arrays {listed(arrays)}; name its k-space with --key")
    shape, _ = held[name]
    check_declared(path, shape, np.dtype(np.complex64))
    check_memory(path, int(np.prod(shape)))
    with path.open("rb") as file:
        values = scipy.io.loadmat(file, variable_names=[name])[name]
    # MATLAB has no trailing axes of length 1.
    missing = len(axes) - values.ndim
    return values.reshape(*values.shape, *[1] * max(missing, 0))


def _read_numpy(path: Path, key: str | None, axes: tuple[str, ...]) -> np.ndarray | Reopened:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            shape, _, dtype = read_header(file, path, path.stat().st_size)
        check_axes(path, shape, dtype, axes)
        return Reopened(lambda index: np.array(np.load(path, mmap_mode="r")[index]), shape, dtype)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(only_member(path, key, archive.namelist()))
        check_expansion(path, member.file_size, member.filename)
        with archive.open(member) as file:
            shape, _, dtype = read_header(file, path, member.file_size)
            check_axes(path, shape, dtype, axes)
            check_memory(path, int(np.prod(shape)))
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
