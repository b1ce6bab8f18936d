"""Values of a campaign's file, checked one by one: a wrong one is told with its place."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from kscout.errors import ConfigError, unknown_name

Table = dict[str, Any]


@final
@dataclass(frozen=True)
class Kind:
    """What a value may be: in words, and as a test."""

    words: str
    accepts: Callable[[Any], bool]

    def check(self, value: Any, where: str) -> None:  # noqa: ANN401 - any TOML value
        """Say what is wrong with a value, if something is."""
        if not self.accepts(value):
            raise ConfigError(f"{where} is {value!r}; expected {self.words}")


def one_of(*choices: str) -> Kind:
    """Return the kind of a name that is one of a few."""
    return Kind(f"one of: {', '.join(choices)}", lambda value: value in choices)


def _list_of(one: Kind, words: str, *, least: int = 0) -> Kind:
    return Kind(
        words,
        lambda value: (
            isinstance(value, list) and len(value) >= least and all(map(one.accepts, value))
        ),
    )


def _or_list(one: Kind, several: Kind) -> Kind:
    words = f"{one.words} or {several.words}"
    return Kind(words, lambda value: one.accepts(value) or several.accepts(value))


FLAG = Kind("true or false", lambda value: type(value) is bool)
WHOLE = Kind("a whole number", lambda value: type(value) is int)
NUMBER = Kind("a number", lambda value: type(value) in (int, float))
TEXT = Kind("a string", lambda value: isinstance(value, str))
WHOLES = _list_of(WHOLE, "a list of whole numbers", least=1)
NUMBERS = _list_of(NUMBER, "a list of numbers", least=1)
TEXTS = _list_of(TEXT, "a list of strings")
WHOLE_OR_WHOLES = _or_list(WHOLE, WHOLES)
TEXT_OR_TEXTS = _or_list(TEXT, TEXTS)
PLACE = Kind(
    "a whole number or a string", lambda value: WHOLE.accepts(value) or TEXT.accepts(value)
)
PLACES = _or_list(PLACE, _list_of(PLACE, "a list of those"))
COUNTS = Kind(
    "three whole numbers, as in [40, 10, 10]",
    lambda value: (
        re.fullmatch(
            r"\s*\d+\s*(,\s*\d+\s*){2}",
            ",".join(map(str, value)) if isinstance(value, list) else str(value),
        )
        is not None
    ),
)
"""Volumes of training, validation and test; a string as on the command line will do."""


def section(table: Table, name: str, where: str = "") -> Table:
    """Return a section of a table, empty where there is none."""
    value = table.get(name, {})
    if not isinstance(value, dict):
        full = f"{where}.{name}".lstrip(".")
        raise ConfigError(f"{full} is {value!r}; expected a section [{full}]")
    return value


def different_names(grid: Table, key: str, default: list[str]) -> list[str]:
    """Return a list of the grid that names parts of the file."""
    names = grid.get(key, default)
    if not TEXTS.accepts(names) or not names or len(set(names)) < len(names):
        raise ConfigError(f"grid.{key} is {names!r}; expected a list of different names")
    return names


def known(kind: str, name: Any, table: Mapping[str, Any]) -> Any:  # noqa: ANN401 - its values
    """Return what a name stands for, or list the names that stand for something."""
    if not isinstance(name, str) or name not in table:
        raise unknown_name(kind, name, list(table))
    return table[name]


def check_values(table: Any, kinds: Mapping[str, Kind], where: str) -> None:  # noqa: ANN401 - TOML
    """Refuse a table with a key that is not among `kinds`, or a value that is not of its kind."""
    check_keys(table, kinds, where)
    for key, value in table.items():
        kinds[key].check(value, f"{where}.{key}".lstrip("."))


def check_keys(table: Any, allowed: Iterable[str], where: str) -> None:  # noqa: ANN401 - TOML
    """Refuse what is no table, and a table with a key that is not allowed."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r}; expected a section [{where}]")
    names = list(dict.fromkeys(allowed))
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            full = f"{where}.{key}".lstrip(".")
            choices = ", ".join(names) or "none"
            raise ConfigError(f"unknown setting {full!r}{hint}; choose one of: {choices}")
