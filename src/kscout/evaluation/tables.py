"""Small tables on disk: CSV for people and plots, JSON for machines."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kscout.errors import DataError
from kscout.evaluation.requests import Request, keep_request
from kscout.files import write_json, written_whole


def write_table(
    folder: Path, name: str, rows: Sequence[Mapping[str, Any]], request: Request | None = None
) -> None:
    """Write `name.csv` and `name.json` whole, and beside them what they were made with."""
    write_csv(folder / f"{name}.csv", rows)
    write_json(folder / f"{name}.json", list(rows))
    if request is not None:
        keep_request(folder, name, request)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the keys of the first as header; what is None is empty."""
    if not rows:
        raise DataError(f"nothing to write to {path}: the table has no rows")
    with written_whole(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
