"""`kscout analyze`: one command per analysis, made from its options when it is asked for.

Each writes CSV, JSON and, where there is something to draw, figures to a folder.
"""

import inspect
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from typer.core import TyperGroup

from kscout.cli.evaluate import Overwrite, answer_console, evaluation_progress
from kscout.files import finite
from kscout.names import ANALYSES

_GIVEN = {
    "policies": ("POLICY...", "Run folders, weights files or names."),
    "runs": ("RUN...", "Run folders."),
    "results": ("RESULTS...", "Folders that `evaluate` wrote."),
}
_COMMON = {
    "out": Annotated[Path, typer.Option(help="Folder for tables and figures.")],
    "overwrite": Overwrite,
    "as_json": Annotated[bool, typer.Option("--json", help="Print the table as JSON.")],
}
_DEFAULTS = {"overwrite": False, "as_json": False}


class _Commands(Mapping[str, Any]):
    """The command of every analysis that the table knows, those from outside kscout too."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a command of typer's
        if name not in ANALYSES:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


class _Analyses(TyperGroup):
    """The group of these commands."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(cls=_Analyses, no_args_is_help=True)


@cache
def _command(name: str) -> Any:  # noqa: ANN401 - a command of typer's
    """Make the command of an analysis: its options are the fields of its class."""
    kind = ANALYSES.resolve(name)

    def call(given: list[str], out: Path, overwrite: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
        _run(kind, given, options, out=out, overwrite=overwrite, as_json=as_json)

    parameters = _parameters(kind)
    call.__doc__ = kind.__doc__
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    single = typer.Typer(add_completion=False)
    single.command(name)(call)
    return typer.main.get_command(single)


def _parameters(kind: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - a class of analyses
    from kscout.evaluation.analyses import options_of

    metavar, words = _GIVEN[kind.reads]
    given = Annotated[list[str], typer.Argument(metavar=metavar, help=words)]
    found = [inspect.Parameter("given", inspect.Parameter.KEYWORD_ONLY, annotation=given)]
    for option in options_of(kind):
        is_required = option.name in kind.required
        type_, default = _typed(option.type, is_required), _listed(option.default)
        found.append(
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if is_required else default,
                annotation=Annotated[type_, typer.Option(help=option.help)],
            )
        )
    return found + [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS.get(name, inspect.Parameter.empty),
            annotation=annotation,
        )
        for name, annotation in _COMMON.items()
    ]


def _typed(type_: Any, is_required: bool) -> Any:  # noqa: ANN401 - types as values
    """Return the type as typer knows it: an option that may be given often is a list."""
    if get_origin(type_) is tuple:
        return list[get_args(type_)[0]] | None  # type: ignore[misc]
    if is_required and get_origin(type_) in (Union, types.UnionType):
        return next(one for one in get_args(type_) if one is not type(None))
    return type_


def _listed(default: object) -> object:
    return (list(default) or None) if isinstance(default, tuple) else default


def _run(
    kind: Any,  # noqa: ANN401 - a class of analyses
    given: list[str],
    options: dict[str, Any],
    *,
    out: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    from kscout.evaluation.analyses import run_analysis, with_options

    analysis = with_options(kind, options)
    with evaluation_progress() as on_step:
        rows = run_analysis(analysis, given, out=out, overwrite=overwrite, on_step=on_step)
    if as_json:
        typer.echo(json.dumps(finite(kind.document(rows))))
        return
    lines = [asdict(row) for row in kind.told(rows)]
    console = answer_console()
    if lines:
        table = Table(box=SIMPLE_HEAD)
        for key in lines[0]:
            table.add_column(key.replace("_", " "), overflow="fold")
        for line in lines:
            table.add_row(*(_cell(value) for value in line.values()))
        console.print(table)
    text = f"wrote {out}/{kind.file}.csv and .json, {len(rows)} rows"
    if 0 < len(lines) < len(rows):
        text += f", of which {len(lines)} are shown"
    console.print(text, highlight=False, soft_wrap=True)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
