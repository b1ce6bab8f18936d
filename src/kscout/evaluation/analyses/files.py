"""Tables of analyses in files: `FILE.csv`, `FILE.json` and `FILE.settings.json`."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, final

from kscout.config import read, to_table
from kscout.config.layers import Table
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.analysis import Analysis, Page
from kscout.evaluation.analyses.reconstructions import named_reconstructions, shared_protocol
from kscout.evaluation.progress import OnStep
from kscout.evaluation.request import check_same
from kscout.evaluation.summaries.summary import read_summary
from kscout.exports import lazily
from kscout.figures.blocks import Block, under_protocol
from kscout.figures.tables import plain_table
from kscout.files import (
    check_free_of,
    check_replaceable,
    locked,
    read_json,
    write_json,
    written_whole,
)
from kscout.json_types import JsonObject
from kscout.names import ANALYSES
from kscout.names.renamed import current, current_keys
from kscout.runs import read_run

with lazily():
    from kscout import reconstruction
    from kscout.figures.style import save_figure

Row = TypeVar("Row")

_SETTINGS = ".settings.json"


def run_analysis(
    analysis: Analysis[Row],
    sources: Sequence[str],
    *,
    out: Path,
    overwrite: bool = False,
    on_step: OnStep | None = None,
) -> list[Row]:
    """Compute an analysis, and write its table and figures to a folder.

    `overwrite` replaces a table of other settings. `Analysis.reads` describes the sources.
    """
    check_free_of(out, "dataset")
    analysis = _with_protocol(analysis, sources)
    with locked(out):
        settings, protocol = _settings(analysis, sources), _stored_protocol(analysis, sources)
        if protocol is not None:
            settings["protocol"] = protocol
        suffixes = (".csv", ".json", _SETTINGS)
        check_replaceable(*(out / f"{analysis.file}{suffix}" for suffix in suffixes))
        if not overwrite and (out / f"{analysis.file}.csv").exists():
            stored = _read_settings(out / f"{analysis.file}{_SETTINGS}")
            if stored is not None and protocol is not None:
                stored["protocol"] = protocol
            check_same(out, f"{analysis.file}.csv", stored, settings)
        rows = analysis.compute(sources, out=out, on_step=on_step)
        # The CSV file is written last: without it, the table is computed again.
        for suffix in (".csv", ".json"):
            (out / f"{analysis.file}{suffix}").unlink(missing_ok=True)
        write_table(out, type(analysis), rows, settings)
        for name, figure in analysis.figures(rows, out).items():
            save_figure(figure, out, name)
        return rows


def _with_protocol(analysis: Analysis[Row], sources: Sequence[str]) -> Analysis[Row]:
    """Return an analysis with the protocol of its reconstructions, if it does not state one."""
    if getattr(analysis, "protocol", "") is not None:
        return analysis
    source = getattr(analysis, "reconstructor", None)
    named = {} if source is None else {str(source): str(source)}
    if analysis.reads == "reconstructions":
        named = named_reconstructions(sources)
    if not named:
        return analysis
    changes: JsonObject = {
        "protocol": shared_protocol(
            {name: reconstruction.load(path) for name, path in named.items()}
        )
    }
    return replace(analysis, **changes)


def _stored_protocol(analysis: Analysis[Any], sources: Sequence[str]) -> str | None:
    """Return the protocol of the runs or evaluations that an analysis reads; None for others."""
    folder = getattr(analysis, "results", None)
    results = sources if analysis.reads == "results" else [] if folder is None else [folder]
    if results:
        return _joined(read_summary(Path(x)).protocol for x in results)
    if analysis.reads == "runs" and getattr(analysis, "protocol", None) is None:
        return protocols_in(read_run(Path(x)).config for x in sources)
    return None


def protocols_in(configs: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the protocols in the settings of runs, None if there are none."""
    return _joined(config.get("training", {}).get("protocol") for config in configs)


def _joined(protocols: Iterable[str | None]) -> str | None:
    return " and ".join(sorted({x for x in protocols if x is not None})) or None


def protocol_of_table(folder: Path, kind: type[Analysis[Any]]) -> str | None:
    """Return the protocol of a table that `run_analysis` wrote."""
    protocol = (_read_settings(folder / f"{kind.file}{_SETTINGS}") or {}).get("protocol")
    return protocol if isinstance(protocol, str) else None


def write_table(
    folder: Path, kind: type[Analysis[Row]], rows: Sequence[Row], settings: Table | None = None
) -> None:
    """Write the CSV, JSON and settings files of an analysis; None is an empty cell in CSV."""
    path = folder / f"{kind.file}.csv"
    if not rows:
        raise DataError(f"nothing to write to {path}: the table has no rows; analyze more")
    lines = [to_table(row, nulls=True) for row in rows]
    name = {"analysis": ANALYSES.name_of(kind)}
    write_json(path.with_suffix(_SETTINGS), name if settings is None else settings)
    write_json(path.with_suffix(".json"), lines)
    with written_whole(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _settings(analysis: Analysis[Any], sources: Sequence[str]) -> Table:
    """Return everything that a table depends on: the analysis, its sources and its options."""
    options = {
        name: None if value == [] else value
        for name, value in to_table(analysis, nulls=True).items()
        if name not in analysis.free
    }
    name = ANALYSES.name_of(type(analysis))
    return {"analysis": name, analysis.reads: [str(x) for x in sources], **options}


def _read_settings(path: Path) -> Table | None:
    """Return the settings of a table; None if unknown."""
    try:
        settings = read_json(path)
    except (OSError, ValueError):
        return None
    return settings if isinstance(settings, dict) else None


@final
@dataclass(frozen=True)
class Tabulated:
    """A table of an analysis, read from a folder."""

    name: str
    """Of the analysis."""
    kind: type[Analysis[Any]] | None
    """None for an analysis from outside kscout whose module the user did not name, and for one
    that a later version removed."""
    rows: Sequence[Any]
    folder: Path
    protocol: str | None = None
    """Protocol of its scores."""

    @property
    def title(self) -> str:
        return self.name if self.kind is None else self.kind.title

    def blocks(self, page: Page) -> list[Block]:
        """Return its section of a report; a plain table if its code may not be imported."""
        if self.kind is not None:
            return under_protocol(self.kind.blocks(self.rows, page, self.folder), self.protocol)
        note = (
            f"Shown as it is: {self.name} is not part of this version of kscout; if it is an "
            "analysis of yours, name its module with --use."
        )
        return [replace(plain_table(self.name, self.name, self.rows), note=note)]


def find_tables(folder: Path) -> list[Tabulated]:
    """Read the tables that analyses wrote to a folder."""
    paths = [path for path in sorted(folder.glob("*.json")) if not path.name.endswith(_SETTINGS)]
    tables = [_read(path) for path in paths]
    return [table for table in tables if table is not None]


def _read(path: Path) -> Tabulated | None:
    settings = path.with_name(f"{path.stem}{_SETTINGS}")
    if not settings.exists():
        return None
    stored = _read_settings(settings) or {}
    name, protocol = stored.get("analysis"), stored.get("protocol")
    if not isinstance(name, str):
        raise DataError(f"{settings} does not name its analysis; run `kscout analyze` again")
    try:
        document = read_json(path)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); run the analysis again") from error
    name = current("analysis", name)
    if isinstance(document, list):
        document = [current_keys(name, x) if isinstance(x, dict) else x for x in document]
    try:
        kind = ANALYSES.recall(name, path)
    except ConfigError:
        kind = None
    try:
        rows = document if kind is None else [read(kind.row, line) for line in document]
    except (ConfigError, AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is no table of {name} ({error}); run the analysis again"
        ) from error
    # Removed analyses also wrote other documents.
    is_table = isinstance(rows, list) and bool(rows)
    return Tabulated(name, kind, rows, path.parent, protocol) if is_table else None
