"""Validation of start columns and budgets."""

from collections.abc import Sequence

from jaxtyping import Bool, Int
from torch import Tensor

from kscout.columns import center_columns, check_named
from kscout.errors import ConfigError
from kscout.physics.sampling import Initial, listed_columns, start_mask


def check_budget(
    selectable: Bool[Tensor, "slice n_col"],
    *,
    n_initial: Initial,
    horizon: int | Int[Tensor, " slice"],
) -> None:
    """Raise a ConfigError if a slice lacks columns of the start or columns to acquire.

    Args:
        selectable: columns inside the matrix of each slice.
        n_initial: number of central columns measured at the start, columns, or a mask per slice.
        horizon: columns to acquire after the start, one number or one per slice.
    """
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
