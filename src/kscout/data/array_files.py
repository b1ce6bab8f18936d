"""The array files of a store that grows: slices are added part by part, in bounded memory."""

import math
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple, final

import numpy as np
import torch

from kscout.data.integrity import sample_checksum
from kscout.data.journal import room_for
from kscout.data.kinds import Kind
from kscout.data.manifest import ArrayRecord, VolumeRecord
from kscout.data.slices import slice_peaks
from kscout.errors import DataError
from kscout.files import checksum

_HEADER_BYTES = 128


Columns = tuple[tuple[int, ...], ...]
"""Those that were measured, slice by slice."""


class Part(NamedTuple):
    """Some slices of a volume that are kept."""

    stored: np.ndarray
    """As the store's kind lays them out."""
    slices: tuple[int, ...]
    """Their numbers in the source."""
    n_blank: int = 0
    """How many more were left out because they show nothing."""
    columns: Columns = ()
    """Empty where all of the matrix was measured."""


class Written(NamedTuple):
    """What an array has of a volume so far."""

    file: Path
    begin: int
    """Bytes of the file before the volume."""
    shape: tuple[int, ...]
    slices: tuple[int, ...] = ()
    n_blank: int = 0
    peak: float = 0.0
    """Of the targets; NaN where one of them is."""
    crc32: int = 0
    columns: Columns = ()

    def grown(self, stored: np.ndarray, part: Part, peaks: list[float]) -> "Written":
        """Return this with a part more."""
        if self.shape[1:] != stored.shape[1:]:
            raise DataError(
                f"slices of one volume are of shape {self.shape[1:]} and {stored.shape[1:]}; "
                "store them apart"
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
        """Begin without a slice."""
        self._folder, self._kind = folder, kind
        self._shapes: dict[tuple[str, tuple[int, int]], tuple[int, ...]] = {}

    def n_slices(self, split: str) -> int:
        """Return how many slices of a split there are so far."""
        return sum(shape[0] for (where, _), shape in self._shapes.items() if where == split)

    def file(self, split: str, size: tuple[int, int]) -> Path:
        """Return where the slices of a split and matrix size lie."""
        name = f"{split}_{size[0]}x{size[1]}.npy"
        if Path(name).name != name:
            raise DataError(f"split {split!r} cannot be the name of a file; rename it")
        return self._folder / name

    def write(self, split: str, volume: str, parts: Iterable[Part]) -> Written:
        """Add the slices of a volume, which count when `keep` is told of them."""
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
        """Count the slices of a volume, which lie after those of the volumes before."""
        before = self._n_before(record)
        self._shapes[record.split, record.size] = (before + shape[0], *shape[1:])

    def has(self, record: VolumeRecord, shape: tuple[int, ...], crc32: int) -> bool:
        """Say whether the next slices are what a process wrote of a volume before it was killed."""
        file = self.file(record.split, record.size)
        begin = self._n_bytes((self._n_before(record), *shape[1:]))
        n_bytes = self._n_bytes(shape) - _HEADER_BYTES
        if not file.is_file() or file.stat().st_size < begin + n_bytes:
            return False
        return _crc32(file, begin, n_bytes) == crc32

    def close(self) -> tuple[ArrayRecord, ...]:
        """Write the headers, and remove what does not count."""
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
        """Return where a volume will lie."""
        size = (shape[-2], shape[-1])
        known = self._shapes.get((split, size), (0, *shape[1:]))
        # Of images there is nothing between slices and rows, of k-space there are coils.
        others = {other[1:-2] for other in self._shapes.values()} - {shape[1:-2]}
        if others:
            (n_coils,), (n_others,) = shape[1:-2], others.pop()
            raise DataError(
                f"slices of {volume!r} have {n_coils} coils, and others {n_others}; store them "
                f"apart, or compress all to as many (--compress {min(n_coils, n_others)})"
            )
        return Written(self.file(split, size), self._n_bytes(known), (0, *shape[1:]))

    def _extend(self, written: Written, stored: np.ndarray) -> None:
        with written.file.open("r+b" if written.file.exists() else "w+b") as handle:
            if not written.shape[0]:
                # Beyond this point lies only what was written and does not count.
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
        """Write a `.npy` header, in which numpy leaves room for the number of slices to grow."""
        handle.seek(0)
        descr = np.dtype(self._kind.dtype).newbyteorder("<").str
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)


def _crc32(file: Path, begin: int, n_bytes: int) -> int:
    found = 0
    with file.open("rb") as handle:
        handle.seek(begin)
        while n_bytes > 0 and (content := handle.read(min(n_bytes, 2**24))):
            found, n_bytes = zlib.crc32(content, found), n_bytes - len(content)
    return found


def _flush(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())
