"""The journal of an unfinished store: one line per completed volume, and the lock of its writer."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import samestat
from pathlib import Path
from typing import final

from filelock import lock_descriptor

from kscout.data.formats import amount
from kscout.errors import RunError
from kscout.files import check_plain
from kscout.json_types import JsonObject

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
