"""The settings and the metadata of an evaluation, as `summary.json` has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from kscout.config import differences, listed
from kscout.config.bounds import MATRIX, AtLeast, Between, Form
from kscout.config.layers import Table
from kscout.config.records import check
from kscout.errors import ConfigError, DataError, RunError, unknown_name
from kscout.names import POLICIES, RECONSTRUCTION_WORDS, Protocol

_POLICIES = POLICIES.words("a run folder", "a weights file", "a zoo name")
_POLICIES += ", or LABEL=any of these; any number of times."


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Settings of an evaluation that affect its results; `summary.json` contains them."""

    data: str = ""
    """Dataset."""
    split: str = "test"
    """Split to use: train, val or test."""
    size: Annotated[int | tuple[int, int] | None, MATRIX] = None
    """Matrix size, if a split contains several sizes."""
    limit: int | None = None
    """Largest number of slices, spread evenly over the split. (default: all)"""
    reconstructor: Annotated[str, Form(help=RECONSTRUCTION_WORDS)] = ""
    precision: str = "auto"
    """Precision of reconstructions: auto (16 bit on a GPU), fp32 or fp16."""
    policies: Annotated[tuple[str, ...], Form(flags="--policy", help=_POLICIES)] = ()
    n_initial: int | None = None
    """Central columns measured at the start. (default: the runs')"""
    initial: str | None = None
    """Columns to start from instead: a list like 0,3,60-70."""
    steps: int | None = None
    """Columns to acquire. (default: the runs')"""
    columns_per_step: int = 1
    """Columns selected before each reconstruction."""
    trajectories: Annotated[int, AtLeast(1)] = 8
    """Acquisitions per slice of policies that sample columns, as in training (paper: 8)."""
    seeds: Annotated[tuple[int, ...], Form(flags="--seed")] = (0,)
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
class EvaluationSetting(EvaluationRequest):
    """What is evaluated and how; defaults are the paper's.

    In Python the policies, data and reconstructor are arguments of `evaluate`.
    """

    batch_size: int | None = None
    """Slices per batch; results do not depend on it. (default: chosen for the device)"""
    device: str = "auto"
    """auto, cpu or cuda."""
    examples: Annotated[int, Between(0, 9)] = 3
    """Slices stored with images for reports (0 to 9); results do not depend on it."""

    def __post_init__(self) -> None:
        check(self)
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds {list(self.seeds)} name one twice; give each once")
        if None not in (self.n_initial, self.initial):
            raise ConfigError(
                "an evaluation takes either --n-initial or --initial; give one of them"
            )


def setting_of(values: Mapping[str, Any], *keywords: str) -> EvaluationSetting:
    """Build a setting from keyword arguments of a function that has further `keywords`."""
    known = [item.name for item in fields(EvaluationSetting)]
    for name in values.keys() - {*known}:
        others = {"data", "policies", "reconstructor"}  # Arguments without default.
        raise unknown_name("keyword", name, sorted({*known, *keywords} - others))
    return EvaluationSetting(**values)


def check_same(out: Path, product: str, there: Table | None, here: Table) -> None:
    """Raise an error if stored results have other settings."""
    if there == here:
        return
    found = "whose settings are not recorded"
    if there is not None:
        found = f"of other settings ({listed(differences(there, here), 3)})"
    raise RunError(
        f"{out} holds {product} {found}; name another --out, or replace them with --overwrite "
        "(in Python: overwrite=True)"
    )


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
    initial: tuple[str, ...] | None = None
    """The list of the columns of the start; None for central ones."""
    steps: int
    """Columns to acquire."""
    columns_per_step: int = 1
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
