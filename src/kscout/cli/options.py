"""Command options from the fields of dataclasses, which define types, defaults and help."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from kscout.config import settings_class
from kscout.config.options import Option, options_of

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Results = Annotated[Path, typer.Option(help="Folder for tables and figures.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of other settings in --out.")
]

RunFolder = Annotated[Path, typer.Option(help="Run folder; an interrupted run resumes.")]
TrainingStore = Annotated[Path, typer.Option(help="Dataset with the splits train and val.")]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML file; changes the preset.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; may be repeated.")
]
Seeds = Annotated[
    int, typer.Option(min=1, max=1000, help="Number of seeds to train, in OUT/seed-N.")
]
Tensorboard = Annotated[
    bool,
    typer.Option(
        "--tensorboard",
        help="Write events: settings, the loss of updates, scores and pictures of epochs.",
    ),
]

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
    methods: Iterable[str] = (),
) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options from the fields of a dataclass to a command.

    They precede the command's `as_json`; the command receives their values as `**options`.

    Args:
        kind: a dataclass; the docstring under a field is the help of its option.
        names: options, separated by spaces, each `name` or `name=field`; without it, all fields.
        without: fields without options.
        section: section of a settings file. Values are then keyed by dotted name, for `merge`.
        required: options that must be given although the field has a default.
        flags: flags that differ from the name of the field.
        helps: help texts that replace the docstring.
        is_open: whether options have no defaults, and only given ones are passed.
        methods: training methods; the help lists the defaults of each that differ.
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
        if is_open and "(default" not in words:
            words += _default_words(_defaults(option, methods))
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
        given = {name: value for name, value in values.items() if name not in chosen}
        for name, field in chosen.items():
            value, written = values[name], known[field].written
            if value is not None and written:
                value = written.read(value, f"--{name.replace('_', '-')}")
            if value is not None or not is_open:
                given[f"{section}.{field}" if section else field] = value
        return given

    return lambda call: _extended(call, made, read)


def _extended(
    call: _Command, made: list[inspect.Parameter], read: Callable[[dict[str, Any]], dict[str, Any]]
) -> _Command:
    """Return a command with additional parameters, before the `as_json` of the command."""
    parameters = list(inspect.signature(call).parameters.values())
    parameters = [x.replace(kind=x.KEYWORD_ONLY) for x in parameters if x.kind is not x.VAR_KEYWORD]
    last = [one for one in parameters if one.name == "as_json"]
    parameters = [*(one for one in parameters if one not in last), *made, *last]

    @wraps(call)
    def command(**values: Any) -> None:  # noqa: ANN401 - what typer parsed
        call(**read(values))

    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:  # noqa: ANN401
    shown = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=annotation
    )


def _flags(name: str, option: Option, flag: str | None, is_both: bool) -> list[str]:
    """Return the flags of an option; a bool has flags without value."""
    positive = f"--{name.replace('_', '-')}"
    if option.type is not bool:
        return [flag] if flag else []
    return [flag or (f"{positive}/--no-{positive[2:]}" if is_both else positive)]


def _defaults(option: Option, methods: Iterable[str]) -> dict[str, Any]:
    """Return the default of a field, and by method those that differ."""
    defaults = {"": option.default}
    for name in methods:
        kind: Any = settings_class(name)
        fields = {one.name: one.default for one in options_of(kind)}
        if fields.get(option.name, option.default) != option.default:
            defaults[f"{name} "] = fields[option.name]
    return defaults


def _default_words(defaults: Mapping[str, Any]) -> str:
    shown = [f"{name}{_text(one)}" for name, one in defaults.items() if _text(one)]
    return f" (default: {'; '.join(shown)})" if shown else ""


def _text(default: Any) -> str:  # noqa: ANN401 - of a field
    if default is None or default is False or default is MISSING:
        return ""
    values = default if isinstance(default, tuple) else (default,)
    return ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)


def _choices(option: Option) -> str | None:
    """Return the allowed words of an option, which the settings validate."""
    types_ = [option.type, *get_args(option.type)]
    literal = next((one for one in types_ if get_origin(one) is Literal), None)
    return None if literal is None else "|".join(get_args(literal))


def _typed(option: Option, is_required: bool) -> Any:  # noqa: ANN401 - types as values
    """Return the type for typer: a list for a repeatable option."""
    inner = get_args(option.type)
    if option.is_many:
        return list[inner[0]] if is_required else list[inner[0]] | None  # type: ignore[valid-type]
    if is_required and get_origin(option.type) in (Union, types.UnionType):
        return next(one for one in inner if one is not type(None))
    return option.type
