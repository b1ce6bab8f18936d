"""`kscout report`: one page, or tables and figures, from folders of results."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from kscout.apps.cli.console import console
from kscout.apps.cli.options import AsJson, from_fields
from kscout.config.forms import Form

_DEFAULTS = {"html": "report.html", "csv": "report.csv", "latex": "report.tex"}


@dataclass(frozen=True, kw_only=True)
class _ReportOptions:
    runs: Annotated[tuple[Path, ...], Form("RUNS", is_argument=True)]
    """Evaluation, analysis and run folders, or parents."""
    out: Annotated[Path | None, Form(flags="--out -o")] = None
    """Output file. [default: report.html]"""
    format: Literal["html", "csv", "latex", "markdown"] = "html"
    """The page, or only its tables."""
    figures: Path | None = None
    """Folder for every figure as PNG, SVG and PDF."""
    notes: bool = False
    """Print the notes of LaTeX tables below them."""
    title: str | None = None
    """Title of the page."""
    as_json: AsJson = False


@from_fields
def report(options: _ReportOptions) -> None:
    """Write one self-contained page from results: summary, tables, figures, provenance.

    Example: kscout report results/knee runs/greedy -o report.html --figures figures
    """
    from kscout.apps.report.build import build_report, write_report

    target = options.out or Path(_DEFAULTS.get(options.format, "report.md"))
    written = write_report(
        *(build_report(options.runs, title=options.title), target),
        form=options.format,
        figures=options.figures,
        has_notes=options.notes,
    )
    if options.as_json:
        typer.echo(json.dumps({"written": [str(path) for path in written]}))
        return
    for path in written:
        console().print(f"wrote {path}", soft_wrap=True)
