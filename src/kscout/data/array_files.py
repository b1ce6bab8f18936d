"""The array files of an unfinished store: slices are appended part by part, in bounded memory."""

import math
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple, final

import numpy as np
import torch

from kscout.data.integrity import sample_checksum
from kscout.data.kinds import Kind
from kscout.data.manifest import ArrayRecord, VolumeRecord
from kscout.data.slices import slice_peaks
from kscout.data.unfinished import room_for
from kscout.errors import DataError
from kscout.files import checksum

_HEADER_BYTES = 128


Columns = tuple[tuple[int, ...], ...]
"""Those that were measured, slice by slice."""


class VolumePart(NamedTuple):
    """Some slices of one volume that the store will contain."""

    stored: np.ndarray
    """In the layout of the store's kind."""
    slices: tuple[int, ...]
    """Slice numbers in the source."""
    n_blank: int = 0
    """Number of slices left out because they contain only zeros."""
    columns: Columns = ()
    """Measured columns of each slice; empty if all columns of the matrix were measured."""


class Written(NamedTuple):
    """Slices of one volume that have been written to an array so far."""

    file: Path
    begin: int
    """Bytes of the file before the volume."""
    shape: tuple[int, ...]
    slices: tuple[int, ...] = ()
    n_blank: int = 0
    peak: float = 0.0
    """Maximum of the targets; NaN if one of them is NaN."""
    crc32: int = 0
    columns: Columns = ()

    def grown(self, stored: np.ndarray, part: VolumePart, peaks: list[float]) -> "Written":
        if self.shape[1:] != stored.shape[1:]:
            raise DataError(
                f"slices of one volume are of shape {self.shape[1:]} and {stored.shape[1:]}; "
                "store them separately"
            )
        return self._replace(
            shape=(self.shape[0] + len(stored), *self.shape[1:]),
            slices=self.slices + part.slices,
            n_blank=self.n_blank + part.n_blank,
            columns=self.columns + part.columns,
            peak=float(np.max([self.peak, *peaks])),
            crc32=zlib.crc32(stored.data, self.crc32),
        )


@final
class ArrayFiles:
    """One `.npy` file per split and matrix size, each with the slices of some volumes."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._folder, self._kind = folder, kind
        self._shapes: dict[tuple[str, tuple[int, int]], tuple[int, ...]] = {}

    def file(self, split: str, size: tuple[int, int]) -> Path:
        name = f"{split}_{size[0]}x{size[1]}.npy"
        if Path(name).name != name:
            raise DataError(f"split {split!r} cannot be the name of a file; rename it")
        return self._folder / name

    def write(self, split: str, volume: str, parts: Iterable[VolumePart]) -> Written:
        """Append the slices of a volume; they count only after a call of `keep`."""
        written: Written | None = None
        for part in parts:
            self._kind.check(part.stored)
            stored = np.ascontiguousarray(part.stored)
            written = written or self._begin(split, volume, stored.shape)
            peaks = slice_peaks(self._kind, torch.from_numpy(stored)).tolist()
            with room_for(written.file, stored.nbytes, keep=written.begin):
                self._extend(written, stored)
            written = written.grown(stored, part, peaks)
        if written is None:
            raise DataError(f"volume {volume!r} has no slice to store; leave it out")
        return written

    def keep(self, record: VolumeRecord, shape: tuple[int, ...]) -> None:
        """Count the slices of a volume, which follow those of the previous volumes."""
        before = self._n_before(record)
        self._shapes[record.split, record.size] = (before + shape[0], *shape[1:])

    def has(self, record: VolumeRecord, shape: tuple[int, ...], crc32: int) -> bool:
        """Return whether the next slices are those that a process wrote before it was killed."""
        file = self.file(record.split, record.size)
        begin = self._n_bytes((self._n_before(record), *shape[1:]))
        n_bytes = self._n_bytes(shape) - _HEADER_BYTES
        if not file.is_file() or file.stat().st_size < begin + n_bytes:
            return False
        return zlib.crc32(np.memmap(file, np.uint8, "r", begin, (n_bytes,)).data) == crc32

    def close(self) -> tuple[ArrayRecord, ...]:
        """Write the headers, and truncate slices that do not count."""
        kind = self._kind
        files = {self.file(*place): place for place in self._shapes}
        for file in set(self._folder.glob("*.npy")) - set(files):
            file.unlink()
        arrays = []
        for file, place in files.items():
            shape = self._shapes[place]
            with file.open("r+b") as handle:
                self._write_header(handle, shape)
                handle.truncate(self._n_bytes(shape))
                _flush(handle)
            sums = (checksum(file), sample_checksum(file, _HEADER_BYTES))
            arrays.append(ArrayRecord(file.name, place[0], shape, kind.axes, kind.dtype, *sums))
        return tuple(arrays)

    def _begin(self, split: str, volume: str, shape: tuple[int, ...]) -> Written:
        """Return an empty record at the position of the next volume."""
        size = (shape[-2], shape[-1])
        known = self._shapes.get((split, size), (0, *shape[1:]))
        # Images have only slice and row axes here; k-space also has coils.
        others = {other[1:-2] for other in self._shapes.values()} - {shape[1:-2]}
        if others:
            (n_coils,), (n_others,) = shape[1:-2], others.pop()
            raise DataError(
                f"slices of {volume!r} have {n_coils} coils, and others {n_others}; store them "
                f"separately, or compress all to one number (--compress {min(n_coils, n_others)})"
            )
        return Written(self.file(split, size), self._n_bytes(known), (0, *shape[1:]))

    def _extend(self, written: Written, stored: np.ndarray) -> None:
        with written.file.open("r+b" if written.file.exists() else "w+b") as handle:
            if not written.shape[0]:
                # Everything after this position was written earlier and does not count.
                handle.truncate(written.begin)
                self._write_header(handle, written.shape)
            handle.seek(0, os.SEEK_END)
            handle.write(stored.data)
            _flush(handle)

    def _n_before(self, record: VolumeRecord) -> int:
        return self._shapes.get((record.split, record.size), (0,))[0]

    def _n_bytes(self, shape: tuple[int, ...]) -> int:
        return _HEADER_BYTES + math.prod(shape) * np.dtype(self._kind.dtype).itemsize

    def _write_header(self, handle: BinaryIO, shape: tuple[int, ...]) -> None:
        """Write a `.npy` header; numpy reserves space in it for a growing number of slices."""
        handle.seek(0)
        descr = np.dtype(self._kind.dtype).newbyteorder("<").str
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)


def _flush(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())
