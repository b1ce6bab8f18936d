"""The files of an unfinished store: arrays, and a journal with the lock of the writer.

Slices are appended part by part, in bounded memory; the journal has a line per completed volume.
"""

import errno
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os.path import samestat
from pathlib import Path
from typing import BinaryIO, NamedTuple, final

import numpy as np
import torch
from filelock import lock_descriptor

from kscout.data.formats import amount
from kscout.data.integrity import sample_checksum
from kscout.data.kinds import Kind
from kscout.data.manifest import ArrayRecord, VolumeRecord
from kscout.data.slices import slice_peaks
from kscout.errors import DataError, RunError
from kscout.files import check_plain, checksum
from kscout.json_types import JsonObject

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


JOURNAL = "journal.jsonl"


@final
class Journal:
    """Lines of JSON in the folder of an unfinished store; only this process appends to them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / JOURNAL
        # Unbuffered: closing does not retry a write that failed on a full disk.
        self._handle = self.file.open("a+b", buffering=0)

    def lock(self) -> bool:
        """Take the lock until the journal is closed; return False if another process has it."""
        descriptor = self._handle.fileno()
        is_taken = lock_descriptor(descriptor, blocking=False)
        # The previous holder may have moved the file in the meantime, with the finished store.
        is_there = self.file.exists() and samestat(self.file.stat(), os.fstat(descriptor))
        return is_taken and is_there

    @property
    def n_bytes(self) -> int:
        return os.fstat(self._handle.fileno()).st_size

    def lines(self) -> list[bytes]:
        """Return the complete lines, without a last one that a killed process left incomplete."""
        check_plain(self._handle.fileno(), self.file)
        self._handle.seek(0)
        lines = self._handle.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
            self._handle.truncate(sum(map(len, lines)))
        return lines

    def write(self, value: JsonObject) -> None:
        """Append a line; it is on disk when this returns."""
        line = json.dumps(value).encode() + b"\n"
        with room_for(self.file, len(line), keep=self.n_bytes):
            if self._handle.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle.fileno())

    def close(self) -> None:
        self._handle.close()


@contextmanager
def room_for(file: Path, n_bytes: int = 0, keep: int | None = None) -> Iterator[None]:
    """Report a full disk, and truncate the file to the `keep` bytes that stay."""
    try:
        if n_bytes > shutil.disk_usage(file.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        if keep is not None and file.exists():
            os.truncate(file, keep)
        free = amount(shutil.disk_usage(file.parent).free)
        needed = f"{amount(n_bytes)} more are needed, and " if n_bytes else ""
        raise RunError(
            f"{file} cannot be written ({error.strerror}): {needed}{free} are free; free some "
            "space and repeat the same command, which resumes"
        ) from error
