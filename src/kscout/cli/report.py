"""`kscout report`: one page, or tables and figures, from folders of results."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kscout.cli.console import console
from kscout.cli.options import AsJson


class Format(StrEnum):
    """Output format of a report."""

    HTML = "html"
    CSV = "csv"
    LATEX = "latex"
    MARKDOWN = "markdown"


_DEFAULTS = {"html": "report.html", "csv": "report.csv", "latex": "report.tex"}


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS", help="Evaluation, analysis and run folders, or parents."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file. [default: report.html]")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="The page, or only its tables.")
    ] = Format.HTML,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as PNG, SVG and PDF.")
    ] = None,
    notes: Annotated[
        bool, typer.Option("--notes", help="Print the notes of LaTeX tables below them.")
    ] = False,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page from results: summary, tables, figures, provenance.

    Example: kscout report results/knee runs/greedy -o report.html --figures figures
    """
    from kscout.report.build import build_report, write_report

    target = out or Path(_DEFAULTS.get(form.value, "report.md"))
    content = build_report(runs, title=title)
    written = write_report(content, target, form=form.value, figures=figures, has_notes=notes)
    if as_json:
        typer.echo(json.dumps({"written": [str(path) for path in written]}))
        return
    for path in written:
        console().print(f"wrote {path}", soft_wrap=True)
