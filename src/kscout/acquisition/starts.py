"""Custom start masks and budgets, from a list on the command line or from a file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kscout.acquisition.plan import check_columns
from kscout.columns import parse_columns
from kscout.errors import ConfigError, DataError
from kscout.files import plain_file, read_arrays, read_json, read_text

Starts = tuple[tuple[int, ...], ...]
"""Columns measured at the start: one entry for all slices, or one per slice."""

R = TypeVar("R")
SUFFIXES = (".npy", ".npz", ".json", ".txt")


def read_starts(given: str | Path, *, n_cols: int) -> Starts:
    """Return the columns measured at the start, validated against the images.

    Args:
        given: a list like `0,3,60-70`; or a file with one such list or one per slice: text with one
            list per line; JSON or .npy with lists of columns or masks of `n_cols` entries; or the
            .npz of `kscout analyze masks`, whose acquired columns become the start.
        n_cols: number of columns of the images.
    """
    where = _file(given)
    rows = [str(given)] if where is None else _rows(where)
    if not isinstance(rows[0], list | str):
        rows = [rows]
    starts = tuple(_columns(row, n_cols, where) for row in rows)
    for start in starts:
        check_columns(start, n_cols)
    return starts


def read_budgets(given: int | str | Path) -> tuple[int, ...]:
    """Return the number of columns at the end, one number for all slices or one per slice."""
    where = _file(str(given))
    rows: list[Any] = [given] if where is None else _rows(where)
    try:
        return tuple(int(row) for row in rows)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"budget {given} is not a number of columns ({error}); give one number, or a file "
            "with one per slice"
        ) from error


def for_slices(rows: Sequence[R], positions: Sequence[int], n_whole: int, what: str) -> list[R]:
    """Return the entry of each slice."""
    if len(rows) == 1:
        return [rows[0]] * len(positions)
    if len(rows) == n_whole:
        return [rows[position] for position in positions]
    if len(rows) == len(positions):
        return list(rows)
    raise DataError(
        f"{len(rows)} {what} were given, the split has {n_whole} slices; give one for all, or one "
        "per slice in the order of the split"
    )


def _file(given: str | Path) -> Path | None:
    path = Path(given)
    return path if isinstance(given, Path) or path.suffix.lower() in SUFFIXES else None


def _rows(path: Path) -> list[Any]:
    """Return the content of a file: text, numbers or lists, one for all slices or one per slice."""
    try:
        found = _READERS.get(path.suffix.lower(), _read_text)(path)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} holds no columns that can be read ({error}); write them as in 0,3,7-9"
        ) from error
    kinds = {type(row) for row in found} if isinstance(found, list) else set()
    if kinds not in ({list}, {str}, {int}, {bool}):
        raise DataError(
            f"{path} holds {_short(found)}; give a list of columns, or a list of lists, one per "
            "slice"
        )
    return found


def _read_text(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in read_text(path).splitlines())
    return [line for line in lines if line]


def _read_array(path: Path) -> Any:  # noqa: ANN401 - lists of lists
    with plain_file(path):
        try:
            # Memory mapping compares the size that the header declares with the size of the file.
            array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        # As in `kscout.files.read_arrays`.
        except Exception as error:
            raise ValueError(str(error) or type(error).__name__) from error
    if array.dtype.kind not in "biu" or array.ndim > 2:
        raise ValueError(f"an array of {array.dtype} with {array.ndim} axes")
    return array.tolist()


def _read_orders(path: Path) -> list[list[bool]]:
    """Return the masks of the first trajectory of each slice in a file of `analyze masks`."""
    order = read_arrays(path)["order"]
    if order.ndim != 3 or order.dtype.kind not in "iu" or not order.shape[1]:
        raise ValueError("its order has no axes slice, trajectory, column")
    return (order[:, 0] >= 0).tolist()


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_array,
    ".npz": _read_orders,
    ".json": read_json,
}


def _columns(row: object, n_cols: int, path: Path | None) -> tuple[int, ...]:
    """Return the columns of a text, a list of columns or a mask."""
    if isinstance(row, str):
        return parse_columns(row)
    if not isinstance(row, list) or not all(isinstance(value, bool | int) for value in row):
        raise DataError(
            f"{path} holds {_short(row)} where a list of columns is expected; write [0, 3, 7]"
        )
    is_mask = any(isinstance(value, bool) for value in row)
    if is_mask and len(row) != n_cols:
        raise DataError(
            f"{path} holds a mask of {len(row)} columns, the images have {n_cols}; give one as "
            "wide as the images"
        )
    # This is unambiguous: a list of more than two columns from {0, 1} would have duplicates.
    if is_mask or (len(row) == n_cols > 2 and set(row) <= {0, 1}):
        return tuple(column for column, value in enumerate(row) if value)
    return tuple(row)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
