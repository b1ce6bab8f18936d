"""k-space in arrays: fastMRI's HDF5 (arXiv:1811.08839), and any with axes named by the user."""

import zipfile
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import scipy.io

from kscout.data.formats import check_memory, listed
from kscout.data.formats.hdf5 import (
    TARGET_KEYS,
    check_chunks,
    datasets,
    encoding_of,
    find_dataset,
    text_attribute,
)
from kscout.data.formats.mrd import find_measurement, read_mrd
from kscout.data.formats.numpy_array import opened, read_header
from kscout.data.formats.raw import Index, RawScan, Reopened, check_axes, check_declared, named_scan
from kscout.errors import DataError

_KSPACE = "kspace"
_AXES = {4: ("slice", "coil", "row", "col"), 3: ("slice", "row", "col")}
"""Axes of multi-coil and single-coil files; the readout is along rows."""


def read_named(path: Path, key: str | None = None, axes: tuple[str, ...] | None = None) -> RawScan:
    """Return the k-space of an array."""
    if axes is None:
        raise DataError(
            f"{path} does not describe the axes of its k-space; name them, as in --axes "
            "slice,coil,row,col"
        )
    if h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            keys = list(datasets(file))
        if key is None and len(keys) != 1:
            raise DataError(f"{path} holds {listed(keys)}; name its k-space with --key")
        # MATLAB varies the first axis fastest, and HDF5 the last.
        is_matlab = path.suffix.lower() == ".mat"
        return _hdf5_scan(path, key or keys[0], axes[::-1] if is_matlab else axes)
    if path.suffix.lower() == ".mat":
        return named_scan(path, _read_matlab(path, key, axes), axes)
    return named_scan(path, _read_numpy(path, key, axes), axes)


def read_hdf5_kspace(
    path: Path,
    key: str | None = None,
    axes: tuple[str, ...] | None = None,
    header: Path | None = None,
) -> RawScan:
    """Return the k-space of a file; `key` may also name the group of a measurement."""
    if axes is not None:
        return read_named(path, key, axes)
    with h5py.File(path, "r") as file:
        if (group := find_measurement(file, key)) is not None:
            return read_mrd(path, group, header)
        data = find_dataset(file, path, key or _KSPACE)
        if data is None or data.shape is None or len(data.shape) not in _AXES:
            state = f"of shape {data.shape}" if data is not None else "missing"
            raise DataError(
                f"{path} has no k-space of fastMRI ({key or _KSPACE} is {state}; the file contains "
                f"{listed(datasets(file))}); name it with --key and --axes"
            )
        acquisition = text_attribute(file, "acquisition")
        measured = _mask(file, path, data.shape[-1])
        encoding = encoding_of(file, path)
        n_axes = len(data.shape)
    scan = _hdf5_scan(path, key or _KSPACE, _AXES[n_axes])
    scan = scan._replace(acquisition=acquisition, measured=measured)
    if encoding and encoding.encoded and encoding.encoded.matrix[0] == scan.shape[2]:
        space = encoding.encoded
        scan = scan._replace(n_readout=encoding.n_readout, spacing_mm=space.spacing_mm)
    return scan


def holds_kspace(path: Path) -> bool:
    """Return whether a file has k-space (fastMRI or MRD) and no target."""
    # Opening a pipe would block.
    if not path.is_file():
        return False
    # The reader reports files that cannot be read.
    with suppress(Exception), h5py.File(path, "r") as file:
        has_lines = "dataset" in file or find_measurement(file) is not None
        return not set(TARGET_KEYS) & set(file) and (_KSPACE in file or has_lines)
    return False


def _mask(file: h5py.File, path: Path, n_cols: int) -> np.ndarray | None:
    """Return the columns that fastMRI's test set marks as measured; None if not marked."""
    dataset = find_dataset(file, path, "mask")
    if dataset is None or dataset.shape != (n_cols,) or dataset.dtype.kind not in "fiub":
        return None
    return np.asarray(dataset[()]) != 0


def _hdf5_scan(path: Path, name: str, axes: tuple[str, ...]) -> RawScan:
    """Return the k-space of a dataset; its file is opened again for each read."""
    names = name.split(",")
    with h5py.File(path, "r") as file:
        sets = [_dataset(file, path, one) for one in names]
        shape, dtype = sets[0].shape, sets[0].dtype
        if len(sets) > 1:
            alike = {(data.shape, data.dtype.kind in "fiu") for data in sets}
            if len(sets) != 2 or alike != {(shape, True)}:
                raise DataError(
                    f"{path} does not hold {name} as two arrays of real numbers and one shape; "
                    "name the real and the imaginary part with --key"
                )
            dtype = np.dtype(np.complex64)

    def look(index: Index) -> np.ndarray:
        with h5py.File(path, "r") as file:
            first, *second = (file[one][index] for one in names)
            return first + 1j * second[0] if second else first

    return named_scan(path, Reopened(look, shape, dtype), axes)


def _dataset(file: h5py.File, path: Path, name: str) -> h5py.Dataset:
    data = find_dataset(file, path, name)
    if data is None or data.shape is None:
        raise DataError(
            f"{path} has no {name} (it has: {listed(datasets(file))}); name its k-space with --key"
        )
    check_declared(path, data.shape, data.dtype)
    check_chunks(data, path)
    return data


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
    with opened(path, key) as (file, n_bytes):
        shape, _, dtype = read_header(file, path, n_bytes)
        check_axes(path, shape, dtype, axes)
        if not zipfile.is_zipfile(path):
            return Reopened(
                lambda index: np.array(np.load(path, mmap_mode="r")[index]), shape, dtype
            )
        check_memory(path, int(np.prod(shape)))
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
