"""The journal of a store that grows: a line per volume on disk, and the lock of who writes it."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import samestat
from pathlib import Path
from typing import Any, final

from filelock import lock_descriptor

from kscout.data.formats import amount
from kscout.errors import RunError
from kscout.files import check_plain

JOURNAL = "journal.jsonl"


@final
class Journal:
    """Lines of JSON in the folder of an unfinished store, which this process alone adds to."""

    def __init__(self, folder: Path) -> None:
        """Open or begin the journal of a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / JOURNAL
        # Unbuffered: what a full disk did not take is not tried again when it is closed.
        self._handle = self.file.open("a+b", buffering=0)

    def lock(self) -> bool:
        """Take the lock, which lasts until the journal is closed; False where another has it."""
        descriptor = self._handle.fileno()
        is_taken = lock_descriptor(descriptor, blocking=False)
        # Whoever held it may have moved it away, together with the finished store, meanwhile.
        is_there = self.file.exists() and samestat(self.file.stat(), os.fstat(descriptor))
        return is_taken and is_there

    @property
    def n_bytes(self) -> int:
        return os.fstat(self._handle.fileno()).st_size

    def lines(self) -> list[bytes]:
        """Return the lines so far, without one inside which a process was killed."""
        check_plain(self._handle.fileno(), self.file)
        self._handle.seek(0)
        lines = self._handle.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
            self._handle.truncate(sum(map(len, lines)))
        return lines

    def write(self, value: dict[str, Any]) -> None:
        """Add a line; it is on disk when this returns."""
        line = json.dumps(value).encode() + b"\n"
        with room_for(self.file, len(line), keep=self.n_bytes):
            if self._handle.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle.fileno())

    def close(self) -> None:
        """Release the file and the lock."""
        self._handle.close()


@contextmanager
def room_for(file: Path, n_bytes: int = 0, keep: int | None = None) -> Iterator[None]:
    """Tell a full disk, and take back what was written of a file in vain.

    Args:
        file: that is written.
        n_bytes: how much.
        keep: bytes of the file that stay, where it is only added to.
    """
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
            f"{file} cannot be written ({error.strerror}): {needed}{free} are free; make room and "
            "type the same command again, and it goes on"
        ) from error
