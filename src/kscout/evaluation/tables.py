"""Small tables on disk: CSV for people and plots, JSON for machines."""

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kscout.errors import DataError
from kscout.evaluation.requests import Request, keep_request
from kscout.files import write_json, written_whole


def write_table(
    folder: Path,
    name: str,
    rows: Sequence[Any],
    *,
    document: Any = None,  # noqa: ANN401 - any JSON value
    request: Request | None = None,
) -> None:
    """Write `name.csv` and `name.json` whole, and beside them what they were made with.

    Args:
        folder: made where it is not there.
        name: of the files.
        rows: dataclass instances; their fields are the header, and what is None is empty.
        document: the content of the JSON file; the rows where not given.
        request: the settings that made the table.
    """
    if not rows:
        raise DataError(f"nothing to write to {folder / name}.csv: the table has no rows")
    lines = [asdict(row) for row in rows]
    path = folder / f"{name}.csv"
    with written_whole(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    write_json(folder / f"{name}.json", lines if document is None else document)
    if request is not None:
        keep_request(folder, name, request)
