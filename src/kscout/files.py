"""Atomic writes (temporary file, flush, rename), and locks on folders."""

import errno
import glob
import hashlib
import json
import math
import os
import platform
import re
import secrets
import stat
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import lock_descriptor

from kscout.errors import ConfigError, RunError
from kscout.json_types import JsonObject

LOCK = ".lock"
"""File of a folder that is locked while a process uses the folder."""

_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
"""Distinguishes processes of this machine from those of others that use the same disk."""

MOST_BYTES = 2**26
"""Size limit of text files, far above those that kscout writes."""
_UNPACKED = 2**30
"""Size that an archive may always unpack to; larger ones at most 100 times their own size."""
_DEEPEST = 100
"""Levels of JSON and TOML files, far above those that kscout writes."""
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"
_DOTTED = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]+[ \t]*\.[ \t]*){{{_DEEPEST}}}""")


def as_path(given: object, what: str, otherwise: str = "") -> Path:
    """Return a path; raise an error for an object that is none, with a further way to pass it."""
    if isinstance(given, str | os.PathLike):
        return Path(given)
    advice = f", {otherwise}" if otherwise else ""
    raise ConfigError(
        f"{type(given).__name__} is no path of a {what}; give its name or path{advice}"
    )


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it is renamed to `path`, on failure it is removed.

    The temporary file is in the same folder, so that the rename is atomic. Temporary files of
    killed processes are removed by the next process that writes the same file.
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
        # A failed write has no file name in its error, and users do not know the temporary file.
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


_PRODUCTS = {
    "dataset": "manifest.json",
    "run": "config.toml",
    "campaign": "campaign.json",
    "evaluation": "results.csv",
}
"""Products of commands, and the file that each folder of one contains."""


def check_free_of(out: Path, *products: str) -> None:
    """Raise an error for a folder that holds one of these products, which others would mix with."""
    for product in products:
        if (out / _PRODUCTS[product]).is_file():
            raise RunError(
                f"{out} is the folder of another product, a {product} ({_PRODUCTS[product]}); "
                "name another --out"
            )


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
    """Take a folder's lock, which the system releases when this process ends.

    Returns:
        A descriptor: the lock is held until this process and all that inherited it have closed it.
        None if another process holds the lock.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        is_taken = is_current = False
        try:
            is_taken = lock_descriptor(descriptor, blocking=wait)
            # The previous holder may have removed the file, which makes its lock ineffective.
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
    """Lock a folder inside the block; afterwards remove the lock file and an empty new folder."""
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
    """Return whether some process holds a folder's lock; creates no file."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return not lock_descriptor(descriptor, blocking=False)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; invalid characters (of file names) are escaped as in JSON."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write an indented JSON file atomically, with keys in the given order.

    NaN and infinities, which JSON lacks, become null.
    """
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


@contextmanager
def plain_file(path: Path, most: int = MOST_BYTES) -> Iterator[BinaryIO]:
    """Open a regular file for reading, without blocking, up to a size limit."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        check_plain(descriptor, path, most)
        yield file


def check_plain(descriptor: int, path: Path, most: int = MOST_BYTES) -> None:
    """Raise an error for an open file that is not regular, or larger than `most` bytes."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "Not a plain file", str(path))
    if facts.st_size > most:
        fault = f"{facts.st_size} bytes, more than the limit {most} for such a file"
        raise OSError(errno.EFBIG, fault, str(path))


def read_bytes(path: Path) -> bytes:
    """Read a complete regular file."""
    with plain_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Read a complete text file."""
    return read_bytes(path).decode("utf-8")


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Read a JSON file; any fault of its content is a ValueError."""
    return parse_json(read_text(path))


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text; any fault of it is a ValueError."""
    try:
        return _shallow(json.loads(text))
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def parse_toml(text: str) -> JsonObject:
    """Return the table of a TOML text; any fault of it is a ValueError."""
    # The parser's time grows with the square of the number of dots.
    if _DOTTED.search(text):
        raise ValueError(_TOO_DEEP)
    try:
        table: JsonObject = _shallow(tomllib.loads(text))
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    return table


def _shallow(value: Any) -> Any:  # noqa: ANN401 - any value of JSON or TOML
    """Return a value; raise an error for one that is nested too deeply for recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_DEEPEST):
        values = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for one in values for inner in one if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def read_arrays(path: Path) -> JsonObject:
    """Read an `.npz` file; any fault of its content is a ValueError."""
    import numpy as np

    with plain_file(path, 2**30) as file:
        try:
            check_unpacked(file)
            return dict(np.load(file, allow_pickle=False))
        # zipfile, zlib and numpy raise arbitrary types on damaged files.
        except Exception as error:
            raise ValueError(reason_of(error)) from error


def check_unpacked(file: BinaryIO) -> None:
    """Raise a ValueError for a zip archive that unpacks to far more than its size; rewind it."""
    with zipfile.ZipFile(file) as archive:
        n_bytes = sum(member.file_size for member in archive.infolist())
    if n_bytes > max(_UNPACKED, 100 * os.fstat(file.fileno()).st_size):
        raise ValueError(f"it unpacks to {n_bytes} bytes")
    file.seek(0)


def checked_array(array: Any, kinds: str, n_axes: int) -> Any:  # noqa: ANN401 - of NumPy
    """Return an array of a file; raise a ValueError for another type, shape, or NaN."""
    import numpy as np

    if array.dtype.kind not in kinds or array.ndim != n_axes or 0 in array.shape:
        raise ValueError(f"an array of {array.dtype}, shape {array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("an array with NaN or infinite values")
    return array


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason_of(error: Exception) -> str:
    """Return an exception as one line without addresses of objects."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    line, *more = text.strip().splitlines() or [type(error).__name__]
    line += f" {more[0].strip()}" if more and line.endswith(":") else ""
    return re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>", "an expression", line)


def read_record(path: Path, **kinds: type) -> JsonObject:
    """Read a small JSON file that others may be writing; missing or damaged content is empty.

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
    """Return a JSON value with None for every number that is NaN or infinite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
