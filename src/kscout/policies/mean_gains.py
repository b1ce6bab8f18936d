"""Baseline gains of a fixed order, and their transfer to other matrices."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.columns import span_of
from kscout.errors import ConfigError
from kscout.physics.fourier import frequencies

_MOST_TABLES = 1000


class GainTable(NamedTuple):
    """Baseline gains along a fixed order, before each of its columns."""

    name: str
    n_cols: int
    """Columns of the matrix of the measurement."""
    n_initial: int
    """Columns of the policy's own matrix that are the same fraction as the start."""
    n_first: int
    """Number of measured columns at the first row."""
    n_rows: int


def tables_of(
    n_cols: int,
    n_initial: int,
    horizon: int,
    known_cols: Sequence[int] = (),
    known_starts: Sequence[int] = (),
) -> list[GainTable]:
    """Return the tables of a policy; the first is that of its own matrix and earliest start.

    Args:
        n_cols: columns of its own matrix.
        n_initial: measured columns at the earliest start.
        horizon: rows from there on; tables of later starts end with the same column.
        known_cols: columns of other matrices, which start with the same fraction of columns.
        known_starts: later starts in columns of its own matrix.
    """
    if not all(n_initial < start < n_initial + horizon for start in known_starts):
        raise ConfigError(
            f"some of known_starts {[*known_starts]} are not among the {horizon - 1} columns after "
            f"n_initial {n_initial}; give later ones"
        )
    n_tables = (1 + len(known_cols)) * (1 + len(known_starts))
    if n_tables > _MOST_TABLES:
        raise ConfigError(
            f"known_cols and known_starts have {n_tables} combinations; expected at most "
            f"{_MOST_TABLES}"
        )
    results = []
    for size in (n_cols, *known_cols):
        for start in (n_initial, *known_starts):
            span = (start, horizon + n_initial - start)
            if size != n_cols:
                span = span_of(*span, size, n_cols)
            of_size = "" if size == n_cols else f"_{size}"
            of_start = "" if start == n_initial else f"_from_{start}"
            results.append(GainTable(f"prior{of_size}{of_start}", size, start, *span))
    return results


def read_nearest(
    tables: Sequence[GainTable],
    gains: Callable[[str], Float[Tensor, "step known_col"]],
    measured: Int[Tensor, " n"],
    step: Int[Tensor, " n"],
    n_cols: int,
) -> Float[Tensor, "n col"]:
    """Return baseline gains of the nearest matrix and its nearest start."""
    tables, share = _of_nearest_size(tables, n_cols)
    rows = [row_of(measured, one.n_first, one.n_rows, share=share) for one in tables]
    results = [
        at_frequencies(gains(one.name), n_cols)[row] for one, row in zip(tables, rows, strict=True)
    ]
    nearest = _nearest_start(tables, (measured - step) * share)
    return torch.stack(results).gather(0, nearest[None, :, None].expand(-1, -1, n_cols))[0]


def steps_since(
    tables: Sequence[GainTable], measured: Int[Tensor, " n"], step: Int[Tensor, " n"], n_cols: int
) -> Int[Tensor, " n"]:
    """Return the number of columns measured after the nearest available start."""
    tables, share = _of_nearest_size(tables, n_cols)
    since = torch.stack([measured - round(one.n_first / share) for one in tables])
    nearest = _nearest_start(tables, (measured - step) * share)
    return since.gather(0, nearest[None])[0].clamp(min=0)


def _of_nearest_size(tables: Sequence[GainTable], n_cols: int) -> tuple[list[GainTable], float]:
    """Return the tables of the nearest matrix, and its columns per column of `n_cols`."""
    size = nearest_size(n_cols, [one.n_cols for one in tables])
    return [one for one in tables if one.n_cols == size], size / n_cols


def _nearest_start(tables: Sequence[GainTable], start: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the index of the table with the nearest start.

    Without tensors made from Python numbers, which would synchronize with a GPU.
    """
    return torch.stack([(start - one.n_first).abs() for one in tables]).argmin(dim=0)


def at_frequencies(
    gains: Float[Tensor, "step col"], n_cols: int
) -> Float[Tensor, "step other_col"]:
    """Return gains at the columns of another matrix, by frequency in cycles per pixel."""
    n_known = gains.shape[1]
    if n_cols == n_known:
        return gains
    place = frequencies(n_cols, gains.device) * (n_known / n_cols) + n_known // 2
    place = place.clamp(min=0, max=n_known - 1)
    below = place.floor().long().clamp(max=n_known - 2)
    return torch.lerp(gains[:, below], gains[:, below + 1], place - below)


def nearest_size(n_cols: int, known: Sequence[int]) -> int:
    """Return the known number of columns with the ratio to `n_cols` nearest to one."""
    return min(known, key=lambda size: abs(math.log(size / n_cols)))


def row_of(
    measured: Int[Tensor, " n"], n_first: int, n_rows: int, *, share: float
) -> Int[Tensor, " n"]:
    """Return the row of a table for given numbers of measured columns.

    `share` is the number of columns of the table's matrix per column of the other matrix.
    """
    return ((measured * share).round().long() - n_first).clamp(min=0, max=n_rows - 1)
