"""Small tables on disk: CSV for people and plots, JSON for machines."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kscout.errors import DataError
from kscout.files import write_json, written_whole


def write_table(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `name.csv` and `name.json` whole; what is None is empty in the first."""
    if not rows:
        raise DataError(f"nothing to write to {folder / name}.csv: the table has no rows")
    with written_whole(folder / f"{name}.csv") as aside:
        with aside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    write_json(folder / f"{name}.json", list(rows))
