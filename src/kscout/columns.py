"""Columns of k-space as numbers and as text; without torch, for planning and reports.

Column `n_cols // 2` is DC.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from kscout.errors import ConfigError

MOST_COLUMNS = 65536
"""Larger than any image: a longer range is a typing error."""
LEAST_CENTRAL = 8
"""Smallest number of central columns from which ESPIRiT estimates sensitivities."""


def center_columns(n_cols: int, n_center: int) -> range:
    """Return the `n_center` columns around DC, at `n_cols // 2`.

    If they cannot be symmetric, one more column stays free on the left than on the right.
    """
    start = (n_cols - n_center + 1) // 2
    return range(start, start + n_center)


def check_named(columns: Sequence[int], n_cols: int, what: str) -> None:
    """Raise an error for columns outside the image, and for duplicates."""
    outside = [column for column in columns if not 0 <= column < n_cols]
    if outside:
        raise ConfigError(
            f"column {outside[0]} of the {what} is not one of the {n_cols} columns of the images; "
            f"give columns 0..{n_cols - 1}"
        )
    if len(set(columns)) < len(columns):
        twice = next(column for column, n in Counter(columns).items() if n > 1)
        raise ConfigError(f"column {twice} occurs twice in the {what}; name each column once")


def whole_order(n_cols: int, order: Sequence[int]) -> list[int]:
    """Return all columns: those of an order, then the others from the center outwards."""
    check_named(order, n_cols, "order")
    rest = set(range(n_cols)) - set(order)
    return [*order, *sorted(rest, key=lambda column: (abs(column - n_cols // 2), column))]


def parse_columns(text: str) -> tuple[int, ...]:
    """Parse a list of columns in its order: `0,3,60-62` is 0, 3, 60, 61, 62.

    Separators are commas, semicolons and blanks; a range includes both ends.
    """
    columns: list[int] = []
    for word in re.split(r"[\s,;]+", text.strip(" \t\r\n,;")):
        ends = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", word)
        if ends is None:
            raise ConfigError(
                f"{word!r} is not a column; list columns and ranges like 0,3,60-70, the lowest is 0"
            )
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if not first <= last < first + MOST_COLUMNS:
            raise ConfigError(f"the range {word} contains no columns of an image; give it as 60-70")
        columns.extend(range(first, last + 1))
        if len(columns) > MOST_COLUMNS:
            raise ConfigError(f"a list of columns names more than {MOST_COLUMNS}; give each once")
    return tuple(columns)


def columns_text(columns: Sequence[int]) -> str:
    """Return columns as the shortest list of columns and ranges, in ascending order."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in column_ranges(columns))


def column_ranges(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last column of each range of consecutive columns."""
    runs = itertools.groupby(enumerate(sorted(set(columns))), key=lambda pair: pair[1] - pair[0])
    grouped = [[column for _, column in run] for _, run in runs]
    return [(run[0], run[-1]) for run in grouped]
