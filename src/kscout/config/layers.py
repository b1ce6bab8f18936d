"""Settings as plain tables: read from files, merged, and compared."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kscout.config.retired import of_today
from kscout.errors import ConfigError, KScoutError
from kscout.files import parse_json, parse_toml, read_text
from kscout.json_types import JsonObject

Table = JsonObject
_KINDS_OF_RUNS = ("reconstructor", "policy", "joint")
"""A table of such a kind was written by kscout."""
_MOST_DOTS = 16


def read_file(
    path: Path, *, what: str = "the settings", error: type[KScoutError] = ConfigError
) -> Table:
    """Read a .toml or .json file that holds one table."""
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = read_text(path)
        table = parse_json(text) if form == "JSON" else parse_toml(text)
    except OSError as fault:
        raise error(f"cannot read {what} {path}: {fault.strerror}") from fault
    except ValueError as fault:
        raise error(f"{path} is not valid {form}: {fault}") from fault
    if not isinstance(table, dict):
        raise error(f"{path} holds a {type(table).__name__}; expected a table of names and values")
    return of_today(table) if table.get("kind") in _KINDS_OF_RUNS else table


def given(file: Path | None, assignments: Iterable[str], options: Mapping[str, object]) -> Table:
    """Return only the settings that a user gave: in a file, by `--set`, by options (dotted names).

    Assignments replace values of the file, and options that are not None replace both.
    """
    of_file = {} if file is None else read_file(file)
    return merge(of_file, assigned(assignments), nested(options))


def section(table: Mapping[str, object], name: str) -> Table:
    """Return a section of a table; an empty one if the value is missing or no section."""
    found = table.get(name)
    return found if isinstance(found, dict) else {}


def merge(*layers: Mapping[str, object]) -> Table:
    """Lay tables over each other, the later ones winning; sections are merged key by key.

    A section that names another component (`name`) replaces the one below it as a whole, because
    the arguments of the first are not the second's.
    """
    merged: Table = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                names = (below.get("name"), value.get("name"))
                is_other = None not in names and names[0] != names[1]
                merged[key] = merge(value) if is_other else merge(below, value)
            else:
                merged[key] = merge(value) if isinstance(value, dict) else value
    return merged


def assigned(assignments: Iterable[str]) -> Table:
    """Return the table that `section.key=value` assignments describe, values written as in TOML."""
    found: Table = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not 0 < name.strip(". ").count(".") <= _MOST_DOTS:
            raise ConfigError(f"{assignment!r} is no setting; write section.key=value")
        found = merge(found, nested({name.strip(): _parsed(text.strip())}))
    return found


def nested(options: Mapping[str, object]) -> Table:
    """Return the table of options by dotted name, without those that are None."""
    found: Table = {}
    for name, value in options.items():
        if value is not None:
            *sections, key = name.split(".")
            table = {key: value}
            for section in reversed(sections):
                table = {section: table}
            found = merge(found, table)
    return found


def differences(there: object, here: object, where: str = "") -> list[str]:
    """Return in words, one by one, where two tables differ."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return [] if _is_same(there, here) else [f"{where} is {there!r} there and {here!r} here"]
    keys = dict.fromkeys([*there, *here])
    return [
        difference
        for key in keys
        for difference in differences(
            there.get(key, "not set"), here.get(key, "not set"), f"{where}.{key}".lstrip(".")
        )
    ]


def _is_same(there: object, here: object) -> bool:
    """Return whether two values are equal; unlike in Python, true is not 1."""
    if isinstance(there, list) and isinstance(here, list):
        return len(there) == len(here) and all(map(_is_same, there, here))
    return there == here and isinstance(there, bool) is isinstance(here, bool)


def listed(found: Sequence[str], most: int = 5) -> str:
    """Return the first differences and the number of the others, in one sentence."""
    n_more = len(found) - most
    return "; ".join([*found[:most], f"{n_more} more"] if n_more > 0 else found)


def _parsed(text: str) -> object:
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        # A bare word is a string, so that a shell needs no quotes inside quotes; and a number of
        # thousands of digits is none.
        return text
