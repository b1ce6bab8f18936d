"""Files that appear whole: written aside, flushed to disk, then renamed into place."""

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it becomes `path`, on failure nothing remains.

    The temporary file lies in the same folder, so that the rename is atomic.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        yield aside
        descriptor = os.open(aside, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    with written_whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a JSON file whole, keys in the order given, readable by people.

    NaN and infinities, for which JSON has no word, become null.
    """
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with None for every number in it that is NaN or infinite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
