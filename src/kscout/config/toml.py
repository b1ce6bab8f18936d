"""Settings as TOML: read strictly (an unknown key or a wrong type fails), changed, dumped."""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from kscout.config.schema import Component, PolicyConfig, ReconstructorConfig
from kscout.errors import ConfigError

Settings = TypeVar("Settings", ReconstructorConfig, PolicyConfig)
Table = dict[str, Any]


def read_config(kind: type[Settings], path: Path, base: Settings | None = None) -> Settings:
    """Read the settings of one kind of run from a file; what it does not name stays as in `base`.

    Args:
        kind: the class of settings that the command needs.
        path: a TOML file; a `kind` in it must agree.
        base: a preset; the class's defaults where not given.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read settings from {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        return from_table(kind, table, base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def from_table(kind: type[Settings], table: Table, base: Settings | None = None) -> Settings:
    """Build settings from a parsed TOML document."""
    found = table.get("kind", kind.kind)
    if found != kind.kind:
        raise ConfigError(f"these are settings of kind {found!r}, not {kind.kind!r}")
    changes = {key: value for key, value in table.items() if key != "kind"}
    return _build(kind, _merge(to_table(base or kind()), changes), "")


def with_settings(config: Settings, assignments: Iterable[str]) -> Settings:
    """Return the settings changed by `section.key=value` assignments, values written as in TOML."""
    table = to_table(config)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        *sections, key = name.strip().split(".")
        if not equals or not sections:
            raise ConfigError(f"{assignment!r} is no setting; write section.key=value")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name.strip()!r} is no setting: {section!r} is no section")
        inner[key] = _parse_value(text.strip())
    return from_table(type(config), table)


def to_table(settings: Any) -> Table:  # noqa: ANN401 - any dataclass of settings
    """Return settings as plain tables, lists and scalars; what is None is left out."""
    if isinstance(settings, Component):
        return {"name": settings.name, **settings.arguments}
    table: Table = {"kind": settings.kind} if hasattr(type(settings), "kind") else {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if is_dataclass(value):
            table[item.name] = to_table(value)
        elif value is not None:
            table[item.name] = list(value) if isinstance(value, tuple) else value
    return table


def dump_config(config: ReconstructorConfig | PolicyConfig) -> str:
    """Return settings as a TOML document that `read_config` reads back unchanged."""
    lines: list[str] = []
    for name, value in to_table(config).items():
        if isinstance(value, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_emit(v)}" for key, v in value.items())]
        else:
            lines.append(f"{name} = {_emit(value)}")
    return "\n".join(lines) + "\n"


def _emit(value: Any) -> str:  # noqa: ANN401 - any TOML value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_emit(item) for item in value)}]"
    return repr(value)


def _parse_value(text: str) -> Any:  # noqa: ANN401 - any TOML value
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # A bare word is a string, so that a shell needs no quotes inside quotes.
        return text


def _merge(base: Table, changes: Mapping[str, Any]) -> Table:
    """Lay changes over tables; another component's name drops the arguments of the first."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            is_other = "name" in value and value["name"] != below.get("name")
            merged[key] = value if is_other else _merge(below, value)
        else:
            merged[key] = value
    return merged


def _build(kind: Any, table: Table, where: str) -> Any:  # noqa: ANN401 - a class of settings
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {_told(table)}; expected a section [{where}]")
    if kind is Component:
        return _build_component(table, where)
    types = get_type_hints(kind)
    names = [item.name for item in fields(kind)]
    for key in table:
        if key not in names and key != "kind":
            raise _unknown_key(f"{where}.{key}".lstrip("."), key, names)
    values = {
        name: _convert(types[name], table[name], f"{where}.{name}".lstrip("."))
        for name in names
        if name in table
    }
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from error


def _build_component(table: Table, where: str) -> Component:
    if not isinstance(table.get("name"), str):
        raise ConfigError(f'[{where}] has no name; write name = "..." in it')
    return Component(table["name"], {k: v for k, v in table.items() if k != "name"})


def _unknown_key(where: str, key: str, names: list[str]) -> ConfigError:
    near = difflib.get_close_matches(key, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return ConfigError(f"unknown setting {where!r}{hint}; choose one of: {', '.join(names)}")


def _convert(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - types as values
    """Return the value as the field's type, or say what is wrong with it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _build(kind, value, where)
    if origin in (Union, UnionType):
        return _convert(next(a for a in arguments if a is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            choices = ", ".join(arguments)
            raise ConfigError(f"{where} is {_told(value)}; choose one of: {choices}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {_told(value)}; expected a list, e.g. [10, 20]")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where} is {_told(value)}; expected {_WORDS[kind]}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def _told(value: Any) -> str:  # noqa: ANN401 - any TOML value
    return f"{value!r} ({type(value).__name__})"
