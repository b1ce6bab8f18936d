"""Options of commands from the fields of classes, where types, defaults and help stand once."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from kscout.config.options import Option, options_of

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Results = Annotated[Path, typer.Option(help="Folder for tables and figures.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of other settings in --out.")
]

RunFolder = Annotated[Path, typer.Option(help="Run folder; an interrupted run resumes.")]
TrainingStore = Annotated[Path, typer.Option(help="Store with the splits train and val.")]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML file; changes the preset.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; may be repeated.")
]
Seeds = Annotated[
    int, typer.Option(min=1, max=1000, help="Number of seeds to train, in OUT/seed-N.")
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Write event files.")]

_Command = Callable[..., None]


def with_fields(
    kind: type,
    *,
    names: str = "",
    without: tuple[str, ...] = (),
    section: str = "",
    required: tuple[str, ...] = (),
    flags: Mapping[str, str] | None = None,
    helps: Mapping[str, str] | None = None,
    is_open: bool = False,
) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command options from the fields of a class.

    They stand before the command's `as_json`, which takes their values as `**options`.

    Args:
        kind: a dataclass; the docstring under a field is the help of its option.
        names: options, separated by spaces, each `name` or `name=field`; without it, all fields.
        without: fields that are no options.
        section: of a settings file. Values are then given by dotted name, as `merge` takes them.
        required: options that must be given though they have a default.
        flags: what the command line calls an option otherwise than its name.
        helps: help that is not a docstring.
        is_open: whether options have no defaults, and only those that a user names are given.
    """
    known = {option.name: option for option in options_of(kind)}
    pairs = [name.partition("=") for name in names.split() or known]
    chosen = {name: field or name for name, _, field in pairs if name not in without}
    is_open = is_open or bool(section)
    made = []
    for name, field in chosen.items():
        option = known[field]
        is_required = not is_open and (field in required or option.default is MISSING)
        words = (helps or {}).get(name, option.help)
        words += _default_words(option.default) if is_open and not section else ""
        form = option.written.metavar if option.written else _choices(option) if section else None
        type_: Any = str | None if form else _typed(option, is_required)
        default = None if is_open else MISSING if is_required else option.default
        default = (list(default) or None) if isinstance(default, tuple) else default
        settings = typer.Option(
            *_flags(name, option, (flags or {}).get(name), bool(section)), help=words, metavar=form
        )
        annotation: Any = Annotated[type_ | None if is_open else type_, settings]
        made.append(_parameter(name, annotation, default))

    def read(values: dict[str, Any]) -> dict[str, Any]:
        found = {name: value for name, value in values.items() if name not in chosen}
        for name, field in chosen.items():
            value, written = values[name], known[field].written
            if value is not None and written:
                value = written.read(value, f"--{name.replace('_', '-')}")
            if value is not None or not is_open:
                found[f"{section}.{field}" if section else field] = value
        return found

    return lambda call: _extended(call, made, read)


def _extended(
    call: _Command, made: list[inspect.Parameter], read: Callable[[dict[str, Any]], dict[str, Any]]
) -> _Command:
    """Return a command with further parameters, before the `as_json` of the command."""
    own = list(inspect.signature(call).parameters.values())
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in own if one.kind is not one.VAR_KEYWORD]
    last = [one for one in own if one.name == "as_json"]
    found = [*(one for one in own if one not in last), *made, *last]

    @wraps(call)
    def command(**values: Any) -> None:  # noqa: ANN401 - what typer parsed
        call(**read(values))

    command.__annotations__ = {one.name: one.annotation for one in found}
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    shown = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=annotation
    )


def _flags(name: str, option: Option, flag: str | None, is_both: bool) -> list[str]:
    """Return what the command line calls an option; a truth value is a flag."""
    own = f"--{name.replace('_', '-')}"
    if option.type is not bool:
        return [flag] if flag else []
    return [flag or (f"{own}/--no-{own[2:]}" if is_both else own)]


def _default_words(default: Any) -> str:  # noqa: ANN401 - of a field
    if default is None or default is False or default is MISSING:
        return ""
    values = default if isinstance(default, tuple) else (default,)
    shown = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)
    return f" (default: {shown})" if shown else ""


def _choices(option: Option) -> str | None:
    """Return the words that an option may be, which settings check themselves."""
    found = [option.type, *get_args(option.type)]
    literal = next((one for one in found if get_origin(one) is Literal), None)
    return None if literal is None else "|".join(get_args(literal))


def _typed(option: Option, is_required: bool) -> Any:  # noqa: ANN401 - types as values
    """Return the type as typer knows it: an option that may be given often is a list."""
    inner = get_args(option.type)
    if option.is_many:
        return list[inner[0]] if is_required else list[inner[0]] | None  # type: ignore[valid-type]
    if is_required and get_origin(option.type) in (Union, types.UnionType):
        return next(one for one in inner if one is not type(None))
    return option.type
