"""`kscout analyze`: one command per analysis, generated from its options on first use.

Each writes CSV, JSON and, for most analyses, figures to a folder.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kscout.apps.cli.console import Commands, answer_console, counted
from kscout.apps.cli.options import ResultOptions, from_fields, with_fields
from kscout.apps.cli.progress import evaluation_progress
from kscout.config import to_table
from kscout.config.options import with_options
from kscout.figures.tables import decimals
from kscout.files import finite
from kscout.names import ANALYSES, RECONSTRUCTION_WORDS
from kscout.names.renamed import check_current

_INPUTS = {
    "policies": ("POLICY", "Run folders, weights files or names."),
    "reconstructions": ("RECONSTRUCTION", f"{RECONSTRUCTION_WORDS[:-1]}, or LABEL=PATH."),
    "runs": ("RUN", "Run folders."),
    "results": ("RESULTS", "Folders that `evaluate` wrote."),
}


class _Commands(Mapping[str, object]):
    """The command of every registered analysis, including those of other packages."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a command of typer
        if name not in ANALYSES:
            check_current("analysis", name)
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


class _Analyses(Commands):
    """The command group of the analyses."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - options of typer
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(cls=_Analyses, no_args_is_help=True)


@cache
def _command(name: str) -> Any:  # noqa: ANN401 - a command of typer
    kind = ANALYSES.resolve(name)
    metavar, description = _INPUTS[kind.reads]

    def call(
        results: ResultOptions,
        /,
        given: Annotated[list[str], typer.Argument(metavar=metavar, help=description)],
        **fields: Any,  # noqa: ANN401 - values of its fields
    ) -> None:
        _run(with_options(kind, fields), given, results)

    call.__doc__ = kind.__doc__
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(with_fields(kind, required=kind.required)(from_fields(call)))
    return typer.main.get_command(single)


def _run(analysis: Any, inputs: list[str], results: ResultOptions) -> None:  # noqa: ANN401
    from kscout.evaluation.analyses import protocol_of_table, run_analysis

    with evaluation_progress() as on_step:
        rows = run_analysis(
            *(analysis, inputs), out=results.out, overwrite=results.overwrite, on_step=on_step
        )
    if results.as_json:
        typer.echo(json.dumps(finite(analysis.document(rows))))
        return
    lines = [to_table(row, nulls=True) for row in analysis.printed_rows(rows)]
    console = answer_console()
    if lines:
        protocol = protocol_of_table(results.out, type(analysis))
        console.print(_table(lines, title=protocol and f"Protocol {protocol}"))
    text = f"wrote {results.out}/{analysis.file}.csv and .json, {counted(len(rows), 'row')}"
    if 0 < len(lines) < len(rows):
        text += f", of which {len(lines)} {'is' if len(lines) == 1 else 'are'} shown"
    console.print(text, soft_wrap=True)


def _table(lines: Sequence[Mapping[str, object]], *, title: str | None = None) -> Table:
    """Return rows as a table; empty columns are omitted, and names are not wrapped."""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    keys = [key for key in lines[0] if any(line[key] is not None for line in lines)]
    for number, key in enumerate(keys):
        words = key.split("_")
        width = max(map(len, words)) if number == 0 else None
        table.add_column("\n".join(words), overflow="fold", no_wrap=number == 0, min_width=width)
    for line in lines:
        table.add_row(*(_cell(line[key]) for key in keys))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) >= 1 else decimals(value)
    return str(value)
