"""What an evaluation was asked for, under what its policies ran, and whether that was the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from kscout.config.bounds import AtLeast
from kscout.config.written import MATRIX
from kscout.errors import DataError
from kscout.names import Protocol


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Settings of an evaluation that affect its results."""

    data: str
    """Dataset."""
    split: str = "test"
    """train, val or test."""
    size: Annotated[int | tuple[int, int] | None, MATRIX] = None
    """Matrix size, if a split contains several sizes."""
    limit: int | None = None
    """Largest number of slices, spread evenly over the split. (default: all)"""
    reconstructor: str
    precision: str = "auto"
    """auto, fp32 or fp16."""
    policies: tuple[str, ...]
    n_initial: int | None = None
    """Central columns measured at the start. (default: the runs')"""
    initial: str | None = None
    """Columns to start from instead: a list like 0,3,60-70, or a file (.txt, .json, .npy, .npz)
    with one list or mask for all slices or one for each."""
    steps: int | None = None
    """Columns to acquire. (default: the runs')"""
    budget: str | None = None
    """Columns measured in total, start included, instead of --steps: a number, or a file (.txt,
    .json, .npy) with one per slice."""
    columns_per_step: int = 1
    """Columns selected before each reconstruction."""
    stop_below: float | None = None
    """End a slice when no column has this predicted gain in SSIM (policies that predict gains)."""
    trajectories: Annotated[int, AtLeast(1)] = 8
    """Sampled acquisitions per slice (paper: 8)."""
    seeds: tuple[int, ...] = (0,)
    """Random seeds for sampling; with several, policies that are not trained run once per seed."""
    argmax: bool = False
    """Trained policies acquire the column with the highest score instead of sampling."""
    protocol: Protocol | None = None
    """Statistics by which images are un-normalized before they are scored: of the ground truth
    (paper) or of the measurement (blind). (default: as the reconstruction was trained, else
    blind)"""
    reference: str | None = None
    """Compare with this policy. (default: fixed or another fixed order, else random)"""
    fixed_slices: Annotated[int, AtLeast(1)] = 256
    """Training slices per column when `fixed` is fitted."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under what policies were compared."""

    protocol: str
    metric_convention: str = "paper"
    store: str
    store_fingerprint: str | None = None
    anatomy: str | None = None
    """What a store of kscout's own recipes holds: knee, brain, heads; None for others."""
    columns: str | None = None
    """Where the columns of k-space come from: `measured`, `simulated` or `computed`; None where
    they are the transform of images."""
    split: str
    n_rows: int
    n_cols: int
    n_initial: int
    """Columns of the start; of the shortest where they differ."""
    initial: tuple[str, ...] | None = None
    """Columns of the start, one list for all slices or one for each; None for central ones."""
    steps: int
    """Columns to acquire; the most where budgets differ."""
    columns_per_step: int = 1
    budgets: tuple[int, ...] | None = None
    """Columns to acquire in each slice, where they differ."""
    stop_below: float | None = None
    """Gain in SSIM below which a slice ends."""
    is_argmax: bool = False
    draw_seeds: tuple[int, ...] = ()
    limit: int | None = None
    device: str = ""
    reconstructor: str
    precision: str = ""
    request: EvaluationRequest | None = None
    reconstructor_fingerprint: str | None = None
    note: str | None = None
    """What to know about policies that run under other conditions than they were trained for."""


_CONDITIONS = {
    "store": ("store_fingerprint", "store"),
    "split": ("split",),
    "limit": ("limit",),
    "size": ("n_cols",),
    "rows": ("n_rows",),
    "reconstructor": ("reconstructor_fingerprint", "reconstructor"),
    "protocol": ("protocol",),
    "argmax": ("is_argmax",),
    "initial": ("initial",),
    "columns per step": ("columns_per_step",),
    "budgets": ("budgets",),
    "stop below": ("stop_below",),
}
"""What scores depend on beside the policy and its budget: fields of a summary, the surest first."""


def check_comparable(found: Sequence[Conditions]) -> None:
    """Refuse evaluations whose scores differ for reasons that no row would tell."""
    for name, keys in _CONDITIONS.items():
        values = {key: [getattr(one, key) for one in found] for key in keys}
        # A fingerprint tells more than a name, which may be typed in several ways.
        key = next((key for key in keys if None not in values[key]), keys[-1])
        if len(set(values[key])) > 1:
            named = dict.fromkeys(map(_words, values[keys[-1]]))
            told = named if len(named) > 1 else dict.fromkeys(map(_words, values[key]))
            raise DataError(
                f"these evaluations differ in {name} ({', '.join(told)}), so that their scores do "
                "not belong in one table; analyze them one by one"
            )


def _words(value: object) -> str:
    return "not set" if value is None else str(value)
