"""Commands whose options are the fields of a class, where types, defaults and help stand once."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from kscout.config.options import Option, options_of

_COMMON = {
    "out": Annotated[Path, typer.Option(help="Folder for tables and figures.")],
    "overwrite": Annotated[
        bool, typer.Option("--overwrite", help="Replace results of other settings in --out.")
    ],
    "as_json": Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")],
}
_DEFAULTS = {"overwrite": False, "as_json": False}

MATRIX_SIZE = "COLS|ROWSxCOLS"
"""How one of several matrix sizes is written."""


def matrix_size(text: str | None) -> int | tuple[int, int] | None:
    """Read what names one of several matrix sizes, as `Store.split` takes it."""
    if text is None:
        return None
    from kscout.data.importing import ImportSettings

    size = ImportSettings.parse_size(text, "--size")
    # An import takes one number for a square; here it would take any rows.
    return (size, size) if isinstance(size, int) and "x" in text else size


def command_of(
    kind: type,
    call: Callable[..., None],
    *,
    argument: tuple[str, str] | None = None,
    required: tuple[str, ...] = (),
    flags: Mapping[str, str] | None = None,
    helps: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """Return a function that typer takes for a command; its help is the docstring of the class.

    Args:
        kind: a dataclass; its fields are the options.
        call: called with the options, `out`, `overwrite`, `as_json` and, if there is one, the
            argument `given`.
        argument: metavar and help of an argument that may be given several times.
        required: options that must be given though they have a default.
        flags: what the command line calls an option otherwise than its field.
        helps: help that is not a docstring.
        texts: how options are written that `call` is given as text, to read them itself.
    """
    found = []
    if argument is not None:
        given = Annotated[list[str], typer.Argument(metavar=argument[0], help=argument[1])]
        found.append(_parameter("given", given))
    for option in options_of(kind):
        is_required = option.name in required or option.default is MISSING
        words = (helps or {}).get(option.name, option.help)
        names = [flag] if (flag := (flags or {}).get(option.name)) else []
        names += [f"--{option.name.replace('_', '-')}"] if option.type is bool else []
        written = (texts or {}).get(option.name)
        type_: Any = str | None if written else _typed(option, is_required)
        default = MISSING if is_required else option.default
        default = (list(default) or None) if isinstance(default, tuple) else default
        annotation = Annotated[type_, typer.Option(*names, help=words, metavar=written)]
        found.append(_parameter(option.name, annotation, default))
    found += [
        _parameter(name, kind_, _DEFAULTS.get(name, MISSING)) for name, kind_ in _COMMON.items()
    ]

    def command(**values: Any) -> None:  # noqa: ANN401 - what typer parsed
        call(**values)

    command.__name__ = getattr(call, "__name__", "command").strip("_")
    command.__doc__ = kind.__doc__
    command.__annotations__ = {one.name: one.annotation for one in found}
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, annotation: Any, default: Any = MISSING) -> inspect.Parameter:  # noqa: ANN401
    shown = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=annotation
    )


def _typed(option: Option, is_required: bool) -> Any:  # noqa: ANN401 - types as values
    """Return the type as typer knows it: an option that may be given often is a list."""
    inner = get_args(option.type)
    if option.is_many:
        return list[inner[0]] if is_required else list[inner[0]] | None  # type: ignore[valid-type]
    if is_required and get_origin(option.type) in (Union, types.UnionType):
        return next(one for one in inner if one is not type(None))
    return option.type
