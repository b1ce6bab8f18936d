"""The table lab/results.csv: one row per measured number, and the helper that adds rows."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import final

RESULTS = Path(__file__).with_name("results.csv")


@final
@dataclass(frozen=True)
class Row:
    """One number; an empty field has no value.

    `difference` is `value` minus the value of the method `difference_to`; `low` and `high` are its
    95 % interval over volumes. A row over several seeds lists them in `seed`, joined by spaces.
    """

    experiment: str = ""
    store: str = ""
    split: str = ""
    n_slices: str = ""
    n_volumes: str = ""
    reconstruction: str = ""
    protocol: str = ""
    n_initial: str = ""
    steps: str = ""
    n_cols: str = ""
    method: str = ""
    choice: str = ""
    seed: str = ""
    n_seeds: str = ""
    metric: str = ""
    statistic: str = ""
    value: str = ""
    difference_to: str = ""
    difference: str = ""
    low: str = ""
    high: str = ""
    seconds: str = ""
    device: str = ""
    commit: str = ""
    command: str = ""

    def with_fields(self, **values: str | float | None) -> "Row":
        """Return the row with other values of some fields."""
        return replace(self, **{name: _text(value) for name, value in values.items()})


COLUMNS = tuple(field.name for field in fields(Row))


def read_results(path: Path = RESULTS) -> list[Row]:
    """Read all rows."""
    with path.open(newline="", encoding="utf-8") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def write_results(rows: Iterable[Row], path: Path = RESULTS) -> None:
    """Write all rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(astuple(row) for row in rows)


def result(**values: str | float | None) -> Row:
    """Build a row: None is an empty field, floats have six digits, commits seven characters."""
    row = Row(**{name: _text(value) for name, value in values.items()})
    return replace(row, commit=row.commit[:7])


def _text(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def record(rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Write rows; each takes the place of the row that measured the same on the same device."""
    found = {_key(row): row for row in read_results(path)} if path.exists() else {}
    write_results((found | {_key(row): row for row in rows}).values(), path)


def _key(row: Row) -> tuple[str, ...]:
    omitted = ("value", "difference", "low", "high", "seconds", "commit", "command")
    return tuple(value for name, value in asdict(row).items() if name not in omitted)


def select(rows: Iterable[Row], **query: str) -> list[Row]:
    """Select the rows whose fields equal those of the query."""
    return [row for row in rows if all(getattr(row, key) == query[key] for key in query)]
