"""The metadata of an evaluation, and the check that several can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass

from kscout.errors import DataError
from kscout.evaluation.request import EvaluationRequest


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Metadata of an evaluation: data, start, budget, reconstruction, protocol."""

    protocol: str
    metric_convention: str = "paper"
    store: str
    store_fingerprint: str | None = None
    anatomy: str | None = None
    """Kind of a dataset of kscout's recipes: knee, brain, heads; None for others."""
    columns: str | None = None
    """Origin of the columns of k-space: `measured`, `simulated` or `computed`; None for the
    transform of images."""
    split: str
    n_rows: int
    n_cols: int
    n_initial: int
    """Number of columns of the start; of the shortest if they differ."""
    initial: tuple[str, ...] | None = None
    """Columns of the start: one list, or one per slice; None for central ones."""
    steps: int
    """Columns to acquire; the maximum if budgets differ."""
    columns_per_step: int = 1
    budgets: tuple[int, ...] | None = None
    """Columns to acquire in each slice, if they differ."""
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
    """Differences to the trainings of the policies and the reconstruction."""


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
"""Dependencies of scores other than policy and budget: fields of a summary, the surest first."""


def check_comparable(evaluations: Sequence[Conditions]) -> None:
    """Raise an error for evaluations that must not share a table."""
    for name, keys in _CONDITIONS.items():
        values = {key: [getattr(x, key) for x in evaluations] for key in keys}
        # A fingerprint is preferred to a name, which may be a path.
        key = next((key for key in keys if None not in values[key]), keys[-1])
        if len(set(values[key])) > 1:
            named = dict.fromkeys(map(_words, values[keys[-1]]))
            shown = named if len(named) > 1 else dict.fromkeys(map(_words, values[key]))
            raise DataError(
                f"these evaluations differ in {name} ({', '.join(shown)}), so that their scores do "
                "not belong in one table; analyze them one by one"
            )


def _words(value: object) -> str:
    return "not set" if value is None else str(value)
