"""The plan of acquisitions: where they start and end, how they are scored, and random seeds.

Starts and budgets come from settings, from a list on the command line, or from a file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.columns import center_columns, check_named, parse_columns
from kscout.config import JointConfig, PolicyConfig
from kscout.core import Policy, Protocol, Reconstructor, SliceBatch
from kscout.errors import ConfigError, DataError
from kscout.files import plain_file, read_arrays, read_json, read_text
from kscout.names import check_protocol
from kscout.physics.sampling import Initial, listed_columns, start_mask

Starts = tuple[tuple[int, ...], ...]
"""Columns measured at the start: one entry for all slices, or one per slice."""
R = TypeVar("R")
SUFFIXES = (".npy", ".npz", ".json", ".txt")


@final
@dataclass(frozen=True)
class Plan:
    """Start, number of columns, stopping threshold, scores and random seed of acquisitions."""

    start: Initial
    """Central columns measured at the start, columns, or columns or a mask for each slice."""
    horizon: int
    """Columns to acquire after the start; with `horizons`, their maximum or more."""
    horizons: tuple[int, ...] | Int[Tensor, " batch"] = ()
    """Columns to acquire in each slice; empty if all acquire `horizon`."""
    columns_per_step: int = 1
    """Columns selected before each reconstruction; the last step may have fewer."""
    stop_below: float | None = None
    """A slice ends before a step in which no column has this predicted gain in SSIM."""
    n_trajectories: int = 1
    """Acquisitions per slice of a policy that samples columns."""
    seed: int = 0
    """Random seed for sampling; compared policies use the same one."""
    is_argmax: bool = False
    """Acquire the column with the highest score instead of sampling: one acquisition per slice."""
    protocol: Protocol | None = None
    """How images are un-normalized before they are scored; None: as the reconstruction was trained,
    else `blind`."""
    metric: str = "ssim"
    """Metric of the scores: a name of `kscout.names.METRICS`, or `module:function`."""
    batch_size: int | None = None
    """Slices per batch; results do not depend on it. (default: chosen for the device)"""

    def __post_init__(self) -> None:
        if self.columns_per_step < 1:
            raise ConfigError(
                f"cannot acquire {self.columns_per_step} columns per step; give 1 or more, e.g. 2"
            )
        if self.stop_below is not None and not -1 <= self.stop_below <= 1:
            raise ConfigError(
                f"a gain in SSIM of {self.stop_below} cannot be a threshold; give a number like "
                ".001"
            )
        for name in ("n_trajectories", "batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name} is {count}; it must be 1 or more")
        if self.protocol is not None:
            check_protocol(self.protocol)
        if isinstance(self.horizons, tuple) and max(self.horizons, default=0) > self.horizon:
            raise ConfigError(
                f"horizon is {self.horizon}, less than the {max(self.horizons)} columns of a "
                "slice; give their maximum"
            )

    @property
    def n_initial(self) -> int:
        """Columns measured at the start; those of the shortest start if they differ."""
        if isinstance(self.start, int):
            return self.start
        if isinstance(self.start, Tensor):
            return int(self.start.sum(dim=-1).min())
        return min(map(len, self.starts))

    @property
    def starts(self) -> Sequence[Sequence[int]]:
        """Columns of the start: one list, or one per slice; none if they are central or masks."""
        return listed_columns(self.start)

    @property
    def is_plain(self) -> bool:
        """Whether every step acquires one column of every slice."""
        return self.columns_per_step == 1 and self.stop_below is None and not len(self.horizons)

    def each(self, device: torch.device) -> int | Int[Tensor, " batch"]:
        """Return the number of columns to acquire: one number, or one per slice."""
        return torch.as_tensor(self.horizons, device=device) if len(self.horizons) else self.horizon

    def rows(self, rows: Sequence[int]) -> "Plan":
        """Return the plan of some of the slices."""
        start, horizons = self.start, self.horizons
        if isinstance(start, Tensor):
            start = start[list(rows)]
        elif len(self.starts) > 1:
            start = [self.starts[row] for row in rows]
        if isinstance(horizons, Tensor):
            horizons = horizons[list(rows)]
        elif horizons:
            horizons = tuple(horizons[row] for row in rows)
        return replace(self, start=start, horizons=horizons)

    def check(self, selectable: Bool[Tensor, "slice col"]) -> None:
        """Raise an error if a slice lacks columns of the start or columns to acquire."""
        horizon = self.each(selectable.device)
        check_budget(selectable, n_initial=self.start, horizon=horizon)

    def check_policy(self, policy: Policy) -> None:
        """Raise an error for a threshold with a policy that does not predict gains."""
        if self.stop_below is not None and not policy.gain_units:
            raise ConfigError(
                f"{type(policy).__name__} predicts no gain in SSIM to stop below "
                f"{self.stop_below:g}; leave out the threshold, or use the oracle or a policy "
                "trained with --method dense, posterior or ensemble"
            )

    def simulator(self, batch: SliceBatch, reconstructor: Reconstructor) -> Simulator:
        """Return the simulator of a batch of slices, which scores by protocol and metric."""
        return Simulator(batch, reconstructor, protocol=self.protocol, metric=self.metric)


def training_plan(config: PolicyConfig | JointConfig) -> Plan:
    """Return the plan of a training, whose random numbers have seeds of their own."""
    setting, training = config.acquisition, config.training
    return Plan(
        setting.start,
        setting.horizon,
        columns_per_step=setting.group,
        protocol=training.protocol,
        metric=training.metric,
    )


def check_budget(
    selectable: Bool[Tensor, "slice n_col"],
    *,
    n_initial: Initial,
    horizon: int | Int[Tensor, " slice"],
) -> None:
    """Raise a ConfigError if a slice lacks columns of the start or columns to acquire."""
    n_slices, n_cols = selectable.shape
    least = horizon if isinstance(horizon, int) else int(horizon.min())
    if least < 0:
        raise ConfigError(f"cannot acquire {least} columns; set the number of steps to 0 or more")
    start = _checked_start(selectable, n_initial)
    left = (selectable & ~start).sum(dim=-1)
    n_short = int((left < horizon).sum())
    if not n_short:
        return
    at = int((left - horizon).argmin())
    wanted = horizon if isinstance(horizon, int) else int(horizon[at])
    n_start, n_left = int(start[at].sum()), int(left[at])
    raise ConfigError(
        f"no column left to acquire in {n_short} of {n_slices} slices: {n_start} + {wanted} "
        f"columns were asked of {n_cols}, of which {n_left + n_start} can be measured; lower the "
        f"number of steps to {n_left} or less"
    )


def _checked_start(
    selectable: Bool[Tensor, "slice n_col"], initial: Initial
) -> Bool[Tensor, "slice n_col"]:
    n_slices, n_cols = selectable.shape
    if isinstance(initial, int) and not 0 < initial <= n_cols:
        raise ConfigError(
            f"cannot start from {initial} of {n_cols} columns; set n_initial to 1..{n_cols}"
        )
    for columns in listed_columns(initial):
        check_columns(columns, n_cols)
    start = start_mask(initial, selectable.shape, selectable.device)
    if isinstance(initial, int):
        _check_center(selectable, start, initial)
        return start
    if start.shape != selectable.shape:
        raise ConfigError(
            f"the start masks are {start.shape[0]} of {start.shape[1]} columns, the slices "
            f"{n_slices} of {n_cols}; give one mask per slice, as wide as the images"
        )
    if not start.any(dim=-1).all():
        raise ConfigError("a slice starts from no column at all; measure 1 or more at the start")
    outside = (start & ~selectable).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise ConfigError(
            f"column {column} of the start lies outside the matrix of slice {row}, whose columns "
            "there are empty; leave it out"
        )
    return start


def _check_center(
    selectable: Bool[Tensor, "slice n_col"], start: Bool[Tensor, "slice n_col"], n_initial: int
) -> None:
    """Raise an error if a slice with a narrower or off-center matrix lacks a central column."""
    n_slices, n_cols = selectable.shape
    n_lacking = int((start & ~selectable).any(dim=-1).sum())
    if not n_lacking:
        return
    everywhere = selectable.all(dim=0).tolist()
    fitting = (n for n in range(n_cols) if all(everywhere[x] for x in center_columns(n_cols, n)))
    n_most = max(fitting)
    advice = f"start from {n_most} or fewer" if n_most else "name columns that it has"
    raise ConfigError(
        f"the {n_initial} central columns of the start reach outside the matrix of {n_lacking} of "
        f"{n_slices} slices, whose columns there are empty; {advice}"
    )


def check_columns(columns: Sequence[int], n_cols: int) -> None:
    """Raise an error if a list has duplicate columns or columns outside images of this width."""
    if not columns:
        raise ConfigError("the start names no column; measure 1 or more at the start")
    check_named(columns, n_cols, "start")


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
