"""`kscout analyze`: one command per analysis, made from its options when it is asked for.

Each writes CSV, JSON and, where there is something to draw, figures to a folder.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kscout.cli.console import Commands, answer_console, counted
from kscout.cli.evaluate import RECONSTRUCTION_WORDS
from kscout.cli.options import AsJson, Overwrite, Results, with_fields
from kscout.cli.progress import evaluation_progress
from kscout.config import to_table
from kscout.figures.tables import decimals
from kscout.files import finite
from kscout.names import ANALYSES
from kscout.names.renamed import check_current

_GIVEN = {
    "policies": ("POLICY", "Run folders, weights files or names."),
    "reconstructions": ("RECONSTRUCTION", f"{RECONSTRUCTION_WORDS[:-1]}, or LABEL=PATH."),
    "runs": ("RUN", "Run folders."),
    "results": ("RESULTS", "Folders that `evaluate` wrote."),
}


class _Commands(Mapping[str, Any]):
    """The command of every analysis that the table knows, those from outside kscout too."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a command of typer's
        if name not in ANALYSES:
            check_current("analysis", name)
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


class _Analyses(Commands):
    """The group of these commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(cls=_Analyses, no_args_is_help=True)


@cache
def _command(name: str) -> Any:  # noqa: ANN401 - a command of typer's
    kind = ANALYSES.resolve(name)
    metavar, words = _GIVEN[kind.reads]

    def call(
        given: Annotated[list[str], typer.Argument(metavar=metavar, help=words)],
        out: Results,
        overwrite: Overwrite = False,
        as_json: AsJson = False,
        **options: Any,  # noqa: ANN401 - values of its fields
    ) -> None:
        _run(kind, options, given, out=out, overwrite=overwrite, as_json=as_json)

    call.__doc__ = kind.__doc__
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(with_fields(kind, required=kind.required)(call))
    return typer.main.get_command(single)


def _run(
    kind: Any,  # noqa: ANN401 - a class of analyses
    options: dict[str, Any],
    given: list[str],
    *,
    out: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    from kscout.evaluation.analyses import protocol_of_table, run_analysis, with_options

    analysis = with_options(kind, options)
    with evaluation_progress() as on_step:
        rows = run_analysis(analysis, given, out=out, overwrite=overwrite, on_step=on_step)
    if as_json:
        typer.echo(json.dumps(finite(kind.document(rows))))
        return
    lines = [to_table(row, nulls=True) for row in kind.printed_rows(rows)]
    console = answer_console()
    if lines:
        protocol = protocol_of_table(out, kind)
        console.print(_table(lines, title=protocol and f"Protocol {protocol}"))
    text = f"wrote {out}/{kind.file}.csv and .json, {counted(len(rows), 'row')}"
    if 0 < len(lines) < len(rows):
        text += f", of which {len(lines)} {'is' if len(lines) == 1 else 'are'} shown"
    console.print(text, soft_wrap=True)


def _table(lines: Sequence[Mapping[str, Any]], *, title: str | None = None) -> Table:
    """Return what rows tell; columns that tell nothing are left out, and names are not broken."""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    told = [key for key in lines[0] if any(line[key] is not None for line in lines)]
    for number, key in enumerate(told):
        words = key.split("_")
        width = max(map(len, words)) if number == 0 else None
        table.add_column("\n".join(words), overflow="fold", no_wrap=number == 0, min_width=width)
    for line in lines:
        table.add_row(*(_cell(line[key]) for key in told))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) >= 1 else decimals(value)
    return str(value)
