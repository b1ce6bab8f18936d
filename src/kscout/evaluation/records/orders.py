"""Columns that an evaluation acquired, in their order: from its long table to arrays and text.

Nothing here needs torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int16

from kscout.columns import MOST_COLUMNS, center_columns, columns_text, parse_columns
from kscout.errors import DataError
from kscout.evaluation.records.results import read_rows
from kscout.evaluation.summaries.summary import Summary
from kscout.files import write_text, written_whole

NEVER = -1
"""The order of a column that was not measured."""

_MOST_PLACES = 2**30
"""Limit of the size of an array of orders; the largest evaluations have less than a tenth."""

_Acquired = dict[tuple[str, int], dict[int, list[int]]]
"""Columns in the order of acquisition, by volume and slice, and by trajectory."""


@final
@dataclass(frozen=True)
class Orders:
    """Columns of one policy with one seed."""

    policy: str
    seed: int
    volumes: tuple[str, ...]
    slices: tuple[int, ...]
    order: Int16[np.ndarray, "slice trajectory col"]
    """Place of each column in the order of acquisition: 0 for the start, 1 for the first column
    acquired after it, `NEVER` for a column that was not measured."""

    @property
    def n_acquired(self) -> float:
        """Mean number of columns acquired after the start."""
        return float((self.order > 0).sum(axis=-1).mean())

    def columns(self, row: int) -> list[int]:
        order = self.order[row, 0]
        return sorted(np.flatnonzero(order > 0).tolist(), key=lambda column: order[column])

    def text(self) -> str:
        """Return the first trajectory of each slice as lines: `start; columns in their order`."""
        n_cols = self.order.shape[2]
        lines = [
            f"# {_line(self.policy)}, seed {self.seed}: columns of k-space, 0 to {n_cols - 1}, DC "
            f"is {n_cols // 2}.",
            "# One line per slice: the columns of the start; then those acquired, the first first.",
        ]
        for row, (volume, number) in enumerate(zip(self.volumes, self.slices, strict=True)):
            start = columns_text(np.flatnonzero(self.order[row, 0] == 0).tolist())
            acquired = ",".join(map(str, self.columns(row)))
            lines.append(f"{start}; {acquired}  # {_line(volume)}:{number}")
        return "\n".join(lines) + "\n"

    def save(self, folder: Path, name: str) -> None:
        """Write `NAME.npz` (order, volumes, slices) and `NAME.txt`."""
        folder.mkdir(parents=True, exist_ok=True)
        volumes, slices = np.array(self.volumes), np.array(self.slices)
        with written_whole(folder / f"{name}.npz") as aside, aside.open("wb") as file:
            np.savez_compressed(file, order=self.order, volumes=volumes, slices=slices)
        write_text(folder / f"{name}.txt", self.text())


def read_orders(
    path: Path, summary: Summary, *, is_wanted: Callable[[str, int], bool] | None = None
) -> list[Orders]:
    """Return the columns that the policies of an evaluation measured, from `results.csv`."""
    acquisitions: dict[tuple[str, int], _Acquired] = {}
    try:
        for row in read_rows(path):
            key = row.policy, int(row.seed)
            if is_wanted is not None and not is_wanted(*key):
                continue
            paths = acquisitions.setdefault(key, {}).setdefault((row.volume, int(row.slice)), {})
            columns = paths.setdefault(int(row.trajectory), [])
            columns.extend(int(column) for column in row.column.split())
        return [_orders(*key, acquired, summary) for key, acquired in acquisitions.items()]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} holds a row that is not a result ({error}); evaluate again"
        ) from error


def _orders(policy: str, seed: int, acquired: _Acquired, summary: Summary) -> Orders:
    if not 0 < summary.n_cols <= MOST_COLUMNS:
        raise ValueError(f"its summary describes images of {summary.n_cols} columns")
    n_paths = max(len(paths) for paths in acquired.values())
    if len(acquired) * n_paths * summary.n_cols > _MOST_PLACES:
        raise ValueError(f"{len(acquired)} slices of {n_paths} trajectories are too many")
    order = np.full((len(acquired), n_paths, summary.n_cols), NEVER, dtype=np.int16)
    order[..., _start(summary)] = 0
    for row, paths in enumerate(acquired.values()):
        for path, columns in paths.items():
            if columns and not 0 <= min(columns) <= max(columns) < summary.n_cols:
                raise ValueError(f"columns {columns}, images have {summary.n_cols}")
            order[row, path, columns] = np.arange(1, len(columns) + 1)
    volumes, slices = zip(*acquired, strict=True)
    return Orders(policy, seed, volumes, slices, order)


def _start(summary: Summary) -> list[int]:
    if summary.n_initial > summary.n_cols:
        raise ValueError(f"{summary.n_initial} columns at the start, images have {summary.n_cols}")
    if summary.initial is None:
        return list(center_columns(summary.n_cols, summary.n_initial))
    return list(parse_columns(summary.initial[0]))


def _line(text: str) -> str:
    """Return a name without line breaks, which would end the comment that it stands in."""
    return " ".join(text.split())
