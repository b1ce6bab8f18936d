"""Scan tables: the order in which columns are measured, in the units of a sequence."""

import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from kscout.acquisition.choose import draws_columns
from kscout.acquisition.scan import read_session
from kscout.apps.export.parameters import OrderSetting
from kscout.columns import MOST_COLUMNS, center_columns
from kscout.compatibility import Use, acquisition_note, warn
from kscout.core import Policy
from kscout.errors import ConfigError, DataError, KScoutError
from kscout.evaluation.records.orders import read_orders
from kscout.evaluation.running.entries import trained_budget
from kscout.evaluation.summaries.summary import read_summary
from kscout.files import write_text
from kscout.json_types import JsonObject
from kscout.names import POLICIES, unknown_policy
from kscout.policies import build, load
from kscout.policies.fixed import FixedOrder, Ranking
from kscout.zoo import zoo_names, zoo_path

SUFFIXES = (".csv", ".json")
_LOG = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class ScanTable:
    """Columns in the order of measurement."""

    source: str
    """Origin of the order."""
    n_cols: int
    start: tuple[int, ...]
    """Columns measured first."""
    acquired: tuple[int, ...]
    """Columns measured afterwards."""
    field_of_view_mm: float | None = None
    """Along phase encoding."""

    def __post_init__(self) -> None:
        counts = Counter((*self.start, *self.acquired))
        wrong = [x for x, n in counts.items() if not 0 <= x < self.n_cols or n > 1]
        if wrong:
            raise DataError(
                f"{self.source} measures column {wrong[0]}, which is not in 0 to "
                f"{self.n_cols - 1} or occurs twice; give each column at most once"
            )
        if self.field_of_view_mm is not None and not 1 <= self.field_of_view_mm <= 1000:
            raise ConfigError(
                f"a field of view of {self.field_of_view_mm:g} mm is not in 1 to 1000; give the "
                "size of the image along phase encoding, e.g. 220"
            )

    @property
    def k_step_per_m(self) -> float | None:
        """Distance of neighboring columns in k-space, in cycles per meter: 1 / field of view."""
        return None if self.field_of_view_mm is None else 1000 / self.field_of_view_mm

    def rows(self) -> list[JsonObject]:
        """Return one row per column; `line` is its phase-encoding step, 0 at DC."""
        rows = []
        for place, column in enumerate([*self.start, *self.acquired]):
            line = column - self.n_cols // 2
            step = max(0, place - len(self.start) + 1)
            row = {"place": place, "step": step, "column": column, "line": line}
            unit = self.k_step_per_m
            rows.append(row if unit is None else {**row, "k_per_m": line * unit})
        return rows

    def write(self, path: Path) -> None:
        """Write the table as CSV, or with metadata as JSON, depending on the suffix."""
        rows = self.rows()
        if path.suffix == ".csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_text(path, text.getvalue())
            return
        if path.suffix != ".json":
            raise ConfigError(f"{path} is neither .csv nor .json; use one of these suffixes")
        facts = {
            "source": self.source,
            "n_cols": self.n_cols,
            "n_initial": len(self.start),
            "field_of_view_mm": self.field_of_view_mm,
            "k_step_per_m": self.k_step_per_m,
        }
        write_text(path, json.dumps({**facts, "rows": rows}, indent=2) + "\n")


def order_of(given: str, setting: OrderSetting, field_of_view_mm: float | None) -> ScanTable:
    """Return the order of a policy, of an evaluation (a folder), or of a session (a file)."""
    path = Path(given)
    if path.suffix == ".npz" and not path.exists():
        raise ConfigError(f"{given} does not exist; give the file of a session")
    if (path / "results.csv").is_file():
        setting.check_for(f"the evaluation {path}", "policy", "slice")
        if setting.policy is None:
            raise ConfigError("an evaluation contains the orders of several policies; add --policy")
        table = order_of_evaluation(path, policy=setting.policy, slice_name=setting.slice)
    elif path.suffix == ".npz":
        setting.check_for(f"the session {path}")
        table = order_of_session(path)
    else:
        setting.check_for(f"the policy {given}", "n_cols", "n_initial", "steps")
        sizes = {"n_cols": setting.n_cols, "n_initial": setting.n_initial, "steps": setting.steps}
        table = order_of_policy(given, **sizes_of(given, **sizes))
    return replace(table, field_of_view_mm=field_of_view_mm)


def order_of_policy(given: str, *, n_cols: int, n_initial: int, steps: int) -> ScanTable:
    """Return the order of a non-adaptive policy; raise an error for others."""
    if not 0 < n_initial <= n_initial + steps <= n_cols:
        raise ConfigError(
            f"{n_initial} + {steps} columns cannot be measured of {n_cols}; lower --n-initial or "
            "--steps"
        )
    policy = ranking_of(given, n_cols=n_cols, n_initial=n_initial, horizon=steps)
    if len(policy.scores) != n_cols:
        raise ConfigError(f"{given} orders {len(policy.scores)} columns; set --n-cols to it")
    note = acquisition_note(given, policy, Use((0, n_cols, n_cols), n_initial, steps))
    warn([] if note is None else [note])
    start, scores = tuple(center_columns(n_cols, n_initial)), policy.scores
    if isinstance(policy, FixedOrder) and (n_more := steps - len({*policy.order} - {*start})) > 0:
        text = "%s was fitted for fewer columns; the last %d follow from the center outwards"
        _LOG.warning(text, given, n_more)
    ranked = scores.argsort(descending=True, stable=True).tolist()
    acquired = [column for column in ranked if column not in start][:steps]
    return ScanTable(given, n_cols, start, tuple(acquired))


def sizes_of(
    given: str, *, n_cols: int | None, n_initial: int | None, steps: int | None
) -> dict[str, int]:
    """Return the sizes of an acquisition; missing ones are read from a policy's file."""
    sizes = {"n_cols": n_cols, "n_initial": n_initial, "steps": steps}
    if not Path(given).exists() and zoo_path(given) is None and given not in POLICIES:
        raise unknown_policy(given, [*POLICIES, *zoo_names("policy")])
    if None in sizes.values() and (Path(given).exists() or zoo_path(given) is not None):
        known: JsonObject = {"n_cols": getattr(load(given), "n_cols", None)}
        if n_initial is None or steps is None:
            known["n_initial"], known["steps"] = central_budget(given)
        sizes = {name: known.get(name) if size is None else size for name, size in sizes.items()}
    complete = {name: size for name, size in sizes.items() if size is not None}
    if len(complete) < len(sizes):
        raise ConfigError("a policy orders columns by --n-cols, --n-initial and --steps; give all")
    return complete


def central_budget(given: str) -> tuple[int, int]:
    """Return the number of central columns at the start, and of steps, of a policy's training."""
    trained = trained_budget([given])
    if trained.initial is not None:
        raise ConfigError(
            f"{given} starts from columns {trained.initial}, and exports start from central ones; "
            "give --n-initial and --steps"
        )
    return trained.n_initial, trained.horizon


def ranking_of(given: str, **sizes: int) -> Ranking:
    """Return a policy with a fixed order; raise an error for others."""
    policy = policy_of(given, **sizes)
    if isinstance(policy, Ranking) and not draws_columns(policy, is_argmax=True):
        return policy
    raise ConfigError(
        f"{given} ({type(policy).__name__}) selects columns adaptively or at random, "
        "and has no order; give a fixed order (center-out, equispaced-one, equispaced-two, a "
        "fitted one), or an evaluation or session that recorded one"
    )


def policy_of(given: str, **sizes: int) -> Policy:
    """Return the policy of a run, a file or the zoo, or one built for given sizes."""
    if Path(given).exists():
        return load(given)
    try:
        return build(given, **sizes)
    except ConfigError as error:
        try:
            return load(given)
        except KScoutError:
            raise error from None


def order_of_evaluation(folder: Path, *, policy: str, slice_name: str | None) -> ScanTable:
    """Return the order of a policy on one slice of an evaluation, its first trajectory.

    The slice, VOLUME:NUMBER, is not needed if the policy has the same order for all slices.
    """
    summary = read_summary(folder)
    recorded = read_orders(folder, summary, is_wanted=lambda name, _: name == policy)
    if not recorded:
        names = sorted({entry.policy for entry in summary.policies})
        raise ConfigError(f"{folder} has no policy {policy!r}; choose one of: {', '.join(names)}")
    orders = recorded[0]
    slices = [f"{one}:{number}" for one, number in zip(orders.volumes, orders.slices, strict=True)]
    if slice_name is None and (orders.order != orders.order[:1, :1]).any():
        raise ConfigError(
            f"{policy} has a different order for each slice; add --slice, one of {_some(slices)}"
        )
    if slice_name is not None and slice_name not in slices:
        raise ConfigError(f"{folder} has no slice {slice_name}; it has {_some(slices)}")
    row = 0 if slice_name is None else slices.index(slice_name)
    start = tuple((orders.order[row, 0] == 0).nonzero()[0].tolist())
    source = policy if slice_name is None else f"{policy} on {slice_name}"
    return ScanTable(source, summary.n_cols, start, tuple(orders.columns(row)))


def order_of_session(path: Path) -> ScanTable:
    """Return the order of a session, from a file of `kscout.acquisition.Session`."""
    facts = read_session(path).facts
    try:
        n_cols, initial = facts["scan"]["n_cols"], facts["scan"]["initial"]
        if not 0 < n_cols <= MOST_COLUMNS or (isinstance(initial, int) and initial > n_cols):
            raise ValueError(f"{n_cols} columns")
        start = set(center_columns(n_cols, initial) if isinstance(initial, int) else initial)
        order = [int(column) for column in facts["order"]]
        # A session may receive other columns before its start is complete.
        first = tuple(column for column in order if column in start)
        rest = tuple(column for column in order if column not in start)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a session ({error}); name a file of a session") from error
    return ScanTable(path.name, n_cols, first, rest)


def _some(slices: Sequence[str]) -> str:
    listed = ", ".join(slices[:5])
    return listed if len(slices) <= 5 else f"{listed} and {len(slices) - 5} more"
