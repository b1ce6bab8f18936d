"""Command options from the fields of dataclasses, which define types, defaults and help."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, final, get_args, get_origin

import typer

from kscout.config import settings_class
from kscout.config.bounds import AtLeast, Between, Form
from kscout.config.options import Option, options_of
from kscout.json_types import JsonObject

AsJson = Annotated[bool, Form(flags="--json", help="Print the result as JSON.")]
Device = Annotated[str, Form(help="auto, cpu or cuda.")]
_LAST = ("config", "settings", "device", "tensorboard", "as_json")
"""Options that come last in the help of every command."""

_Command = Callable[..., None]


@final
@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Options of `kscout evaluate` and of the analyses besides their settings."""

    out: Path
    """Folder for tables and figures."""
    overwrite: bool = False
    """Replace results of other settings in --out."""
    as_json: AsJson = False


def from_fields(call: _Command) -> _Command:
    """Return a command with options from the fields of its first parameter, a dataclass."""
    first, *others = inspect.signature(call).parameters.values()
    names = [option.name for option in options_of(first.annotation)]

    @wraps(call)
    def command(**values: Any) -> None:  # noqa: ANN401 - values of the fields
        own = {name: value for name in names if (value := values.pop(name)) is not None}
        call(first.annotation(**own), **values)

    command.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    return with_fields(first.annotation, is_ranged=True)(command)


def with_fields(
    kind: type,
    *,
    names: str = "",
    without: tuple[str, ...] = (),
    section: str = "",
    required: tuple[str, ...] = (),
    helps: Mapping[str, str] | None = None,
    is_open: bool = False,
    is_ranged: bool = False,
    methods: Iterable[str] = (),
) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options from the fields of a dataclass to a command.

    The command receives their values as `**options`.

    Args:
        kind: a dataclass; the docstring under a field is the help of its option.
        names: options, separated by spaces, each `name` or `name=field`; without it, all fields.
        without: fields without options.
        section: section of a settings file. Values are then keyed by dotted name, for `merge`.
        required: options that must be given although the field has a default.
        helps: help texts that replace the docstring.
        is_open: whether options have no defaults, and only given ones are passed.
        is_ranged: whether the command line checks the bounds of numbers, and help shows them.
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
            words += _default_words(option, methods)
        choices = _choices(option) if section else None
        type_: Any = str | None if choices or option.form.read else _typed(option, is_required)
        default = None if is_open else inspect.Parameter.empty if is_required else option.default
        default = (list(default) or None) if isinstance(default, tuple) else default
        settings: Any = (typer.Argument if option.form.is_argument else typer.Option)(
            *_flags(name, option, bool(section)),
            help=words,
            metavar=option.form.metavar or choices,
            envvar=option.form.envvar,
            hidden=option.form.is_hidden,
            **(_range(option) if is_ranged else {}),
        )
        annotation: Any = Annotated[type_ | None if is_open else type_, settings]
        keyword = inspect.Parameter.KEYWORD_ONLY
        made.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))

    def read(values: JsonObject) -> JsonObject:
        given = {name: value for name, value in values.items() if name not in chosen}
        for name, field in chosen.items():
            value, parse = values[name], known[field].form.read
            if value is not None and parse:
                value = parse(value, f"--{name.replace('_', '-')}")
            if value is not None or not is_open:
                value = tuple(value) if isinstance(value, list) else value
                given[f"{section}.{field}" if section else field] = value
        return given

    return lambda call: _extended(call, made, read)


def _extended(
    call: _Command, made: list[inspect.Parameter], read: Callable[[JsonObject], JsonObject]
) -> _Command:
    """Return a command with additional parameters."""
    parameters = [*inspect.signature(call).parameters.values(), *made]
    parameters = [x.replace(kind=x.KEYWORD_ONLY) for x in parameters if x.kind is not x.VAR_KEYWORD]
    parameters.sort(key=lambda x: _LAST.index(x.name) if x.name in _LAST else -1)

    @wraps(call)
    def command(**values: Any) -> None:  # noqa: ANN401 - what typer parsed
        call(**read(values))

    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _flags(name: str, option: Option, is_both: bool) -> list[str]:
    """Return the flags of an option; a bool has flags without value."""
    positive = f"--{name.replace('_', '-')}"
    if option.form.flags or option.type is not bool:
        return option.form.flags.split()
    return [f"{positive}/--no-{positive[2:]}" if is_both else positive]


def _range(option: Option) -> JsonObject:
    bounds = next((one for one in option.marks if isinstance(one, AtLeast | Between)), None)
    return {} if bounds is None else dict(zip(("min", "max"), vars(bounds).values(), strict=False))


def _default_words(option: Option, methods: Iterable[str]) -> str:
    """Return the default of a field, and by method those that differ."""
    defaults = {"": option.default}
    for name in methods:
        kind: Any = settings_class(name)
        fields = {one.name: one.default for one in options_of(kind)}
        if fields.get(option.name, option.default) != option.default:
            defaults[f"{name} "] = fields[option.name]
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
