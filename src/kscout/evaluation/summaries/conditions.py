"""The metadata of an evaluation, and the check that several can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from kscout.errors import DataError
from kscout.evaluation.request import EvaluationRequest


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
