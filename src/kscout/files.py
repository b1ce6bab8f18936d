"""Files that appear whole (written aside, flushed, renamed into place), and locks on folders."""

import errno
import glob
import hashlib
import json
import math
import os
import platform
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import lock_descriptor

from kscout.errors import RunError

LOCK = ".lock"
"""The file of a folder that is locked while a process works in it."""

_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
"""Tells processes of this machine from those of others that write to the same disk."""

MOST_BYTES = 2**26
"""The largest file that is read whole as text, far above what kscout writes."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it becomes `path`, on failure nothing remains.

    The temporary file lies in the same folder, so that the rename is atomic. Those of processes
    that were killed are removed by whoever writes the same file next.
    """
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{_HOST}.*.part"):
        if not _is_alive(leftover.name.split(".")[-3]):
            leftover.unlink(missing_ok=True)
    aside = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        yield aside
        descriptor = os.open(aside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.replace(path)
    except OSError as error:
        # A write that fails tells no name, and nobody knows the file aside.
        if error.filename in (None, str(aside), aside):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        aside.unlink(missing_ok=True)


def check_replaceable(*paths: Path) -> None:
    """Reject paths at which something other than a file is, links to files included."""
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.is_symlink():
            raise FileExistsError(errno.EEXIST, "a link, not a regular file", str(path))
        if path.exists() and not path.is_file():
            raise FileExistsError(errno.EEXIST, "not a regular file", str(path))


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def now() -> str:
    """Return the time for records, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def take_lock(folder: Path, *, wait: bool = False, name: str = LOCK) -> int | None:
    """Take a folder's lock, which the system releases however this process ends.

    Args:
        folder: made where it is not there.
        wait: wait for whoever holds the lock, instead of giving up at once.
        name: of the file that is locked.

    Returns:
        A descriptor: the lock is held until this process and all that inherited it have closed it.
        None where another process holds the lock.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        is_taken = is_current = False
        try:
            is_taken = lock_descriptor(descriptor, blocking=wait)
            # Whoever held it may have removed the file meanwhile: a lock on it is worth nothing.
            is_current = is_taken and _is_same_file(descriptor, folder / name)
        finally:
            if not is_current:
                os.close(descriptor)
        if is_current or not is_taken:
            return descriptor if is_current else None


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def locked(
    folder: Path, *, wait: bool = False, name: str = LOCK, option: str = "--out"
) -> Iterator[None]:
    """Let no other process work in a folder meanwhile; leave no lock, nor a new folder empty.

    Args:
        folder: made where it is not there.
        wait: wait for whoever works there; otherwise refuse at once.
        name: of the file that is locked.
        option: by which a user names the folder.
    """
    is_new = not folder.exists()
    descriptor = take_lock(folder, wait=wait, name=name)
    if descriptor is None:
        raise RunError(
            f"{folder} is in use by another process; wait for it or stop it, or name another "
            f"{option}"
        )
    try:
        yield
    finally:
        (folder / name).unlink(missing_ok=True)
        os.close(descriptor)
        with suppress(OSError):
            if is_new:
                folder.rmdir()


def is_locked(folder: Path) -> bool:
    """Say whether some process holds a folder's lock; makes no file."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return not lock_descriptor(descriptor, blocking=False)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole; what is no text, as names of files may be, as JSON escapes it."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a JSON file whole, keys in the order given, readable by people.

    NaN and infinities, for which JSON has no word, become null.
    """
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


@contextmanager
def plain_file(path: Path, most: int = MOST_BYTES) -> Iterator[BinaryIO]:
    """Open a plain file to be read: one that neither waits for a writer nor has no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        check_plain(descriptor, path, most)
        yield file


def check_plain(descriptor: int, path: Path, most: int = MOST_BYTES) -> None:
    """Refuse an open file that is no plain one, or larger than `most` bytes."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "Not a plain file", str(path))
    if facts.st_size > most:
        fault = f"{facts.st_size} bytes, more than the {most} that are read of such a file"
        raise OSError(errno.EFBIG, fault, str(path))


def read_bytes(path: Path) -> bytes:
    """Read a plain file whole."""
    with plain_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Read a plain file of text whole."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Read a JSON file; whatever is wrong with its content is a ValueError."""
    try:
        return json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_arrays(path: Path) -> dict[str, Any]:
    """Read an `.npz` file; whatever is wrong with its content is a ValueError."""
    import numpy as np

    with plain_file(path, 2**30) as file:
        try:
            return dict(np.load(file, allow_pickle=False))
        # zipfile, zlib and numpy raise what they like on damaged files.
        except Exception as error:
            raise ValueError(str(error) or type(error).__name__) from error


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_record(path: Path, **kinds: type) -> dict[str, Any]:
    """Read a small JSON file that others may be writing; what is missing or damaged is empty.

    Args:
        path: the file.
        kinds: types by key; a value of another type is left out.
    """
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, kinds.get(key, object))
        or (kinds.get(key) is float and type(value) is int)
    }


def finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with None for every number in it that is NaN or infinite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
