"""k-space in HDF5: fastMRI's raw files (arXiv:1811.08839), MRD, and arrays with named axes."""

from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from kscout.data.formats import listed
from kscout.data.formats.arrays import hdf5_scan, read_named
from kscout.data.formats.hdf5 import (
    TARGET_KEYS,
    datasets,
    encoding_of,
    find_dataset,
    text_attribute,
)
from kscout.data.formats.mrd import find_measurement, read_mrd
from kscout.data.formats.raw import RawScan
from kscout.errors import DataError
from kscout.json_types import JsonObject

_KSPACE = "kspace"
_AXES = {4: ("slice", "coil", "row", "col"), 3: ("slice", "row", "col")}
"""Axes of multi-coil and single-coil files; the readout is along rows."""


def read_hdf5_kspace(
    path: Path,
    key: str | None = None,
    axes: tuple[str, ...] | None = None,
    header: Path | None = None,
) -> RawScan:
    """Return the k-space of a file.

    Args:
        path: the file.
        key: dataset of the k-space if it is not fastMRI's, or the group of a measurement.
        axes: names of its axes if they are not fastMRI's.
        header: header file for an MRD file without header.
    """
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
        known: JsonObject = {"acquisition": text_attribute(file, "acquisition")}
        known["measured"] = _mask(file, path, data.shape[-1])
        encoding = encoding_of(file, path)
        if encoding and encoding.encoded and encoding.encoded.matrix[0] == data.shape[-2]:
            known |= {"n_readout": encoding.n_readout, "spacing_mm": encoding.encoded.spacing_mm}
        n_axes = len(data.shape)
    return hdf5_scan(path, key or _KSPACE, _AXES[n_axes], **known)


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
