"""Columns of k-space as numbers and as text; without torch, so that planning and reports read them.

Column `n_cols // 2` is DC.
"""

import itertools
import re
from collections.abc import Sequence

from kscout.errors import ConfigError

MOST_COLUMNS = 65536
"""No image has more: a longer range is a mistake in typing."""
LEAST_CENTRAL = 8
"""Central columns below which sensitivities of coils are not found in them (ESPIRiT)."""


def center_columns(n_cols: int, n_center: int) -> range:
    """Return the `n_center` columns around DC, at `n_cols // 2`.

    Where they cannot lie symmetrically, one more column stays free on the left than on the right.
    """
    start = (n_cols - n_center + 1) // 2
    return range(start, start + n_center)


def share_of(n: int, n_cols: int, n_others: int) -> int:
    """Return how many columns of a matrix are as much of it as `n` are of another; one at least."""
    return max(1, n * n_cols // n_others)


def span_of(first: int, n_steps: int, n_cols: int, n_others: int) -> tuple[int, int]:
    """Return what so many steps after `first` columns of another matrix are of one; one at least.

    That is how many of its columns are measured before the first of them, and their number.
    """
    start, end = (share_of(n, n_cols, n_others) for n in (first, first + n_steps))
    return start, max(1, end - start)


def check_named(columns: Sequence[int], n_cols: int, what: str) -> None:
    """Refuse columns that images of this width do not have, or that are named twice."""
    outside = [column for column in columns if not 0 <= column < n_cols]
    if outside:
        raise ConfigError(
            f"column {outside[0]} of the {what} is not one of the {n_cols} columns of the images; "
            f"give columns 0..{n_cols - 1}"
        )
    if len(set(columns)) < len(columns):
        twice = next(column for i, column in enumerate(columns) if column in columns[:i])
        raise ConfigError(f"column {twice} is twice in the {what}; name each column once")


def whole_order(n_cols: int, order: Sequence[int]) -> list[int]:
    """Return all columns: those of an order first, then the others from the center outwards.

    Args:
        n_cols: number of columns of the image.
        order: columns, the first to acquire first.
    """
    check_named(order, n_cols, "order")
    rest = set(range(n_cols)) - set(order)
    return [*order, *sorted(rest, key=lambda column: (abs(column - n_cols // 2), column))]


def parse_columns(text: str) -> tuple[int, ...]:
    """Return the columns that a list names, in its order: `0,3,60-62` is 0, 3, 60, 61, 62.

    Commas, semicolons and blanks separate; a range includes both of its ends.
    """
    found: list[int] = []
    for word in re.split(r"[\s,;]+", text.strip(" \t\r\n,;")):
        ends = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", word)
        if ends is None:
            raise ConfigError(
                f"{word!r} is not a column; list columns and ranges like 0,3,60-70, the lowest is 0"
            )
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if not first <= last < first + MOST_COLUMNS:
            raise ConfigError(f"the range {word} holds no columns of an image; give it as 60-70")
        found.extend(range(first, last + 1))
    return tuple(found)


def columns_text(columns: Sequence[int]) -> str:
    """Return columns as the shortest list of columns and ranges, lowest first."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in column_ranges(columns))


def column_ranges(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last column of each run of neighbors."""
    runs = itertools.groupby(enumerate(sorted(set(columns))), key=lambda pair: pair[1] - pair[0])
    grouped = [[column for _, column in run] for _, run in runs]
    return [(own[0], own[-1]) for own in grouped]
