"""Tables of analyses on disk: `FILE.csv`, `FILE.json`, and beside them `FILE.settings.json`."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, final

from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.analysis import Analysis, Page
from kscout.evaluation.progress import OnStep
from kscout.evaluation.requests import Request, as_request, check_table, kept_request
from kscout.evaluation.tables import write_table
from kscout.figures.blocks import Block
from kscout.figures.tables import plain_table
from kscout.names import ANALYSES

Row = TypeVar("Row")


def run_analysis(
    analysis: Analysis[Row],
    given: Sequence[str],
    *,
    out: Path,
    overwrite: bool = False,
    on_step: OnStep | None = None,
) -> list[Row]:
    """Compute an analysis, and write its table and figures to a folder.

    Args:
        analysis: with its options.
        given: policies, run folders or evaluation folders; see `Analysis.reads`.
        out: the folder.
        overwrite: replace a table of other settings.
        on_step: told how far the work has come.
    """
    settings = _settings(analysis, given)
    if not overwrite:
        check_table(out, analysis.file, settings)
    rows = analysis.compute(given, out=out, on_step=on_step)
    write_table(out, analysis.file, rows, document=analysis.document(rows), request=settings)
    if figures := analysis.figures(rows, out):
        from kscout.figures.style import save_figure

        for name, figure in figures.items():
            save_figure(figure, out, name)
    return rows


def _settings(analysis: Analysis[Any], given: Sequence[str]) -> Request:
    options = {
        item.name: getattr(analysis, item.name)
        for item in fields(analysis)
        if item.name not in analysis.free
    }
    told = {name: None if value == () else value for name, value in options.items()}
    name = ANALYSES.name_of(type(analysis))
    return as_request({"analysis": name, analysis.reads: list(given), **told})


@final
@dataclass(frozen=True)
class Tabulated:
    """A table of an analysis, read from a folder."""

    name: str
    """Of the analysis."""
    kind: type[Analysis[Any]] | None
    """None for one from outside kscout whose code the user did not name."""
    rows: Sequence[Any]
    folder: Path

    @property
    def title(self) -> str:
        return self.name if self.kind is None else self.kind.title

    def blocks(self, page: Page) -> list[Block]:
        """Lay it out for a report; as it is where its own code may not be imported."""
        if self.kind is not None:
            return self.kind.blocks(self.rows, page, self.folder)
        note = f"Shown as it is: {self.name} is not part of kscout; name its module with --use."
        return [replace(plain_table(self.name, self.name, self.rows), note=note)]


def find_tables(folder: Path) -> list[Tabulated]:
    """Read the tables that analyses wrote to a folder."""
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    return [table for table in found if table is not None]


def _read(path: Path) -> Tabulated | None:
    if path.name.endswith(".settings.json"):
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); make it anew") from error
    name = (kept_request(path.parent, path.stem) or {}).get("analysis") or _recognized(document)
    if name is None:
        return None
    try:
        kind = ANALYSES.recall(name, path)
    except ConfigError:
        kind = None
    try:
        rows = document if kind is None else kind.parse(document)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    is_table = isinstance(rows, list) and bool(rows)
    return Tabulated(name, kind, rows, path.parent) if is_table else None


def _recognized(document: object) -> str | None:
    """Return the analysis of a table by its columns: kscout 0.1 recorded no name beside it."""
    if not (isinstance(document, list) and document and isinstance(document[0], dict)):
        return None
    columns = set(document[0])
    needed = {
        name: {item.name for item in fields(ANALYSES.resolve(name).row) if item.default is MISSING}
        for name in ANALYSES.entries
    }
    matching = [name for name, own in needed.items() if own <= columns]
    return max(matching, key=lambda name: len(needed[name]), default=None)
