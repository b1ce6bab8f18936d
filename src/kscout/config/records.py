r"""Records: frozen dataclasses that are read strictly from TOML and JSON tables, and written.

Settings of runs, campaign files, manifests of datasets and results of evaluations are records. The
fields of a record are its schema; nothing is declared twice.

| field | value in a table |
|---|---|
| `int`, `float`, `bool`, `str`, `Path` | exactly this type; an integer is valid as a `float` |
| `X \| None` | `X`, or None: omitted in TOML, null in JSON |
| `int \| list[int]` | either; the type is preserved |
| `Literal["a", "b"]` | one of these strings |
| `tuple[X, ...]`, `tuple[X, Y]`, `list[X]` | a list, of exactly this length if one is declared |
| `dict[str, X]`, another record | a section |
| `Annotated[X, AtLeast(1)]` | an `X` within bounds; `kscout.config.bounds` has several |
| `Annotated[Mapping[str, X], REST]` | all keys of the section without a field |
| `Annotated[R, Chosen(function)]` | a record; the function selects its class |
| `Annotated[X, Words("...")]` | an `X`; messages describe it in these words |

A field `import_` has the key `import`. A class variable `kind` is written with the fields, and must
agree when it is read. `__post_init__` checks rules that involve several fields and raises a
`ConfigError`; in a class that users build in Python it calls `check(self)` first.

Error messages name the key: `training.n_epochs is 'x'; expected a whole number`. An unknown key
raises an error that suggests the nearest valid key.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tomli_w

from kscout.config.bounds import REST, Bound, Chosen, Words
from kscout.config.layers import Table, given, merge, read_file
from kscout.config.retired import is_dropped
from kscout.errors import ConfigError, KScoutError
from kscout.files import write_json, write_text
from kscout.json_types import JsonObject
from kscout.names.renamed import check_current

R = TypeVar("R")
Hint: TypeAlias = Any
"""The annotation of a field: a class, a union, a generic or an annotated type."""
Value: TypeAlias = Any
"""A value of a table or of a field."""
_origin: Callable[[Hint], Hint] = get_origin

_LONGEST = 200
"""Characters of an invalid value in a message."""
_LARGEST = 2**63 - 1
"""Largest integer of torch and NumPy."""


def read(kind: type[R], table: object, where: str = "") -> R:
    """Build a record from plain tables; `where` is the dotted key of the table, for messages."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {_shown(table)}; expected a section [{where}]")
    types, rest, tag = _types(kind), _rest(kind), _tag(kind)  # type: ignore[arg-type]
    if tag is not None and table.get("kind", tag) != tag:
        raise ConfigError(
            f"these are settings of kind {table['kind']!r}, not {tag!r}; name a file of that kind"
        )
    known: Table = {}
    for key, value in table.items():
        if key in types and key != rest:
            known[key] = value
        elif rest is not None:
            known.setdefault(rest, {})[key] = value
        elif (key != "kind" or tag is None) and not is_dropped(_at(where, key), value):
            check_current("setting", _at(where, key))
            raise unknown_key(key, list(types), where)
    _check_complete(kind, known, where)
    values = {
        key: _convert(types[key], value, where if key == rest else _at(where, key))
        for key, value in known.items()
    }
    names = {_key(item.name): item.name for item in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{names[key]: value for key, value in values.items()})
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}" if where else str(error)) from error


def check(record: Value) -> None:
    """Validate a record that was built in Python; convert NumPy scalars and lists.

    Called in `__post_init__` of classes that users build.
    """
    types, rest = _types(type(record)), _rest(type(record))  # type: ignore[arg-type]
    for item in fields(record):
        if item.init:
            key = _key(item.name)
            where = "" if key == rest else key
            value = _convert(types[key], getattr(record, item.name), where)
            object.__setattr__(record, item.name, value)


def check_arguments(kind: type[Any], arguments: Mapping[str, object], where: str) -> None:
    """Validate arguments against the plain types that a constructor declares."""
    try:
        hints = get_type_hints(kind.__init__, include_extras=True)
    except (NameError, TypeError):
        # Types under TYPE_CHECKING cannot be resolved.
        return
    for name, value in arguments.items():
        if _is_plain(hints.get(name)):
            _convert(hints[name], value, _at(where, name))


def _is_plain(kind: Hint) -> bool:
    """Return whether a table can hold values of a type, as fields of records do."""
    if _origin(kind) is Literal:
        return True
    inner = [one for one in get_args(kind)[: 1 if _origin(kind) is Annotated else None]]
    return kind in (*_NOUNS, NoneType, Ellipsis, Any) or (
        bool(inner) and _origin(kind) in _GENERIC and all(map(_is_plain, inner))
    )


def to_table(record: Value, *, nulls: bool = False) -> Table:
    """Return a record as plain tables, lists and scalars; `nulls` includes None, for JSON."""
    kind, tag = type(record), _tag(type(record))
    table: Table = {} if tag is None else {"kind": tag}
    for item in fields(record):
        value = getattr(record, item.name)
        if _key(item.name) == _rest(kind):
            table |= _plain(value, nulls)
        elif value is not None or nulls:
            table[_key(item.name)] = _plain(value, nulls)
    return table


def settle(
    base: R, file: Path | None, assignments: Iterable[str], options: Mapping[str, object]
) -> R:
    """Override settings by a file, then by `--set`, then by options that are not None."""
    try:
        return read(type(base), merge(to_table(base), given(file, assignments, options)))
    except ConfigError:
        if file is not None:
            load(type(base), file, base=base)
        raise


def load(
    kind: type[R], path: Path, *, base: R | None = None, error: type[KScoutError] = ConfigError
) -> R:
    """Read a record from a .toml or .json file; error messages contain its name.

    The keys that the file omits have the values of `base`, or of the class.
    """
    below = {} if base is None else to_table(base)
    try:
        return read(kind, merge(below, read_file(path, error=error)))
    except ConfigError as fault:
        raise error(f"{path}: {fault}") from fault


def save(path: Path, record: object) -> None:
    """Write a record to a .toml or .json file that `load` reads back unchanged."""
    if path.suffix == ".toml":
        write_text(path, to_toml(record))
    else:
        write_json(path, to_table(record, nulls=True))


def to_toml(record: object) -> str:
    """Return a record as a TOML document."""
    return tomli_w.dumps(to_table(record))


def _convert(kind: Hint, value: Value, where: str) -> Value:
    """Convert a value to the type of its field, or raise an error."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
    origin, arguments = _origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:], value, where)
    if origin in (Union, UnionType):
        return _either(arguments, value, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return value if isinstance(value, kind) else read(kind, value, where)
    if origin in _LISTS and isinstance(value, list | tuple):
        return _listed(origin, arguments, value, where)
    if origin in _SECTIONS and isinstance(value, Mapping):
        return {key: _convert(arguments[1], one, _at(where, key)) for key, one in value.items()}
    return _scalar(kind, value, where)


def _scalar(kind: Hint, value: Value, where: str) -> Value:
    if type(value) is int and not -_LARGEST <= value <= _LARGEST:
        raise ConfigError(f"{where} is {_shown(value)}; whole numbers must fit in 64 bits")
    if type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{where} is {value}; expected a finite number")
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    is_literal = _origin(kind) is Literal
    if kind is Any or (value in get_args(kind) if is_literal else type(value) is kind):
        return value
    raise ConfigError(f"{where} is {_shown(value)}; expected {_words(kind, where)}")


_LISTS = (tuple, list, Sequence)
_SECTIONS = (dict, Mapping)
_GENERIC = (*_LISTS, *_SECTIONS, Union, UnionType, Annotated)


def _annotated(kind: Hint, marks: Sequence[object], value: Value, where: str) -> Value:
    words = next((mark.words for mark in marks if isinstance(mark, Words)), None)
    try:
        converted = _convert(_chosen(kind, marks, value, where), value, where)
        for mark in marks:
            if isinstance(mark, Bound) and converted is not None:
                mark.check(converted, where)
    except ConfigError as error:
        if words is None:
            raise
        raise ConfigError(f"{where} is {_shown(value)}; expected {words}") from error
    return converted


def _chosen(kind: Hint, marks: Sequence[object], value: Value, where: str) -> Value:
    for mark in marks:
        if isinstance(mark, Chosen) and isinstance(value, dict):
            try:
                return mark.pick(value)
            except ConfigError as error:
                raise ConfigError(f"[{where}] {error}") from error
    return kind


def _either(kinds: Sequence[Hint], value: Value, where: str) -> Value:
    """Convert to the first type that preserves the value, or else to the first valid one."""
    converted, errors = [], []
    for kind in kinds:
        try:
            converted.append(_convert(kind, value, where))
        except ConfigError as error:
            errors.append(error)
    unchanged = [one for one in converted if repr(_plain(one, True)) == repr(_plain(value, True))]
    if converted:
        return (unchanged or converted)[0]
    # An error at a nested key belongs to the only type with the structure of the value.
    inner = [error for error in errors if not str(error).startswith(f"{where} is ")]
    if len(inner) == 1:
        raise inner[0]
    raise ConfigError(f"{where} is {_shown(value)}; expected {_any_words(kinds, where)}")


def _listed(origin: Hint, kinds: Sequence[Hint], value: Sequence[Value], where: str) -> Value:
    is_fixed = origin is tuple and kinds[-1] is not Ellipsis
    if is_fixed and len(kinds) != len(value):
        raise ConfigError(f"{where} is {_shown(value)}; expected {_list_words(origin, kinds)}")
    each = kinds if is_fixed else [kinds[0]] * len(value)
    converted = [_convert(each[i], one, f"{where}[{i}]") for i, one in enumerate(value)]
    return tuple(converted) if origin is tuple else converted


_NOUNS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "truth values"),
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
}
_COUNTS = {2: "two", 3: "three", 4: "four"}


def _words(kind: Hint, where: str) -> str:
    """Return the description of the values of a type in messages."""
    origin, arguments = _origin(kind), get_args(kind)
    if origin is Annotated:
        words = next((mark.words for mark in arguments[1:] if isinstance(mark, Words)), None)
        return words or _words(arguments[0], where)
    if origin is Literal:
        return f"one of: {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return _any_words(arguments, where)
    if origin in _LISTS:
        return _list_words(origin, arguments)
    return _NOUNS[kind][0] if kind in _NOUNS else f"a section [{where}]"


def _any_words(kinds: Sequence[Hint], where: str) -> str:
    words = [_words(kind, where) for kind in kinds if kind is not NoneType]
    return " or ".join(dict.fromkeys(words))


def _list_words(origin: Hint, kinds: Sequence[Hint]) -> str:
    each = get_args(kinds[0])[0] if _origin(kinds[0]) is Annotated else kinds[0]
    several = _NOUNS[each][1] if each in _NOUNS else f"values, each {_words(each, 'below')}"
    is_fixed = origin is tuple and kinds[-1] is not Ellipsis
    n_values = f"{_COUNTS.get(len(kinds), str(len(kinds)))} " if is_fixed else ""
    return f"a list of {n_values}{several}"


def _check_complete(kind: Hint, table: Table, where: str) -> None:
    types = _types(kind)
    missing = [
        f"{key}, {_words(types[key], _at(where, key))}"
        for item in fields(kind)
        if (key := _key(item.name)) not in table
        and item.default is MISSING
        and item.default_factory is MISSING
    ]
    if missing:
        section = f"[{where}] needs" if where else "missing:"
        raise ConfigError(f"{section} {' and '.join(missing)}")


def unknown_key(key: str, names: Sequence[str], where: str) -> ConfigError:
    """Return the error for an unknown key, with the nearest valid key."""
    near = difflib.get_close_matches(key, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    choices = ", ".join(names) or "none"
    return ConfigError(f"unknown setting {_at(where, key)!r}{hint}; choose one of: {choices}")


def _plain(value: Value, nulls: bool) -> Value:
    if is_dataclass(value) and not isinstance(value, type):
        return to_table(value, nulls=nulls)
    if isinstance(value, Mapping):
        return {key: _plain(one, nulls) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, nulls) for one in value]
    if type(value).__module__ == "numpy":
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


def _at(where: str, key: object) -> str:
    return f"{where}.{key}".lstrip(".")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


@cache
def _types(kind: Hint) -> JsonObject:
    hints = get_type_hints(kind, include_extras=True)
    return {_key(item.name): hints[item.name] for item in fields(kind) if item.init}


def _tag(kind: Hint) -> str | None:
    own = getattr(kind, "kind", None)
    return own if isinstance(own, str) and "kind" not in _types(kind) else None


def _key(name: str) -> str:
    return name.removesuffix("_")


def _rest(kind: Hint) -> str | None:
    marked = [name for name, hint in _types(kind).items() if REST in get_args(hint)[1:]]
    return marked[0] if marked else None
