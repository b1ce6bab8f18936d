"""Errors, each with a one-sentence message: what was found, what was expected, what to do."""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

_OPTION = re.compile(r"(`[^`]*`|\bkscout [^;,)`]*)|(?<![\w/-])--([a-z][a-z-]*)")
"""Commands, which stay as they are, or the name of an option."""


class KScoutError(Exception):
    """Base class of all errors that kscout raises deliberately.

    Messages are written with options (`--n-initial`), and name them as keyword arguments
    (`n_initial`) outside of commands.
    """

    is_in_command: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message if KScoutError.is_in_command else _OPTION.sub(_keyword, message))


def _keyword(found: re.Match[str]) -> str:
    return found[1] or found[2].replace("-", "_")


@contextmanager
def needs_extra(what: str, extra: str, otherwise: str = "") -> Iterator[None]:
    """Raise an error with installation advice if a package that is imported inside is missing."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what} needs packages that are not installed ({error}); pip install "
            f"'kscout[{extra}]'{otherwise}"
        ) from error


@contextmanager
def naming_options() -> Iterator[None]:
    """Let the errors of a command name options."""
    before, KScoutError.is_in_command = KScoutError.is_in_command, True
    try:
        yield
    finally:
        KScoutError.is_in_command = before


class DataError(KScoutError):
    """A file, volume or store has unexpected content."""


class ConfigError(KScoutError):
    """A setting, name or argument is invalid."""


class WeightsError(KScoutError):
    """A checkpoint or weights file cannot be used for the request."""


class RunError(KScoutError):
    """A run failed, or its folder is missing, incomplete or belongs to another run."""


def unknown_name(kind: str, name: str, choices: Sequence[str]) -> ConfigError:
    """Return the error for an unknown name, with the nearest one and the list of known names."""
    near = difflib.get_close_matches(name, choices, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    listed = ", ".join(sorted(choices))
    return ConfigError(f"unknown {kind} {name!r}{hint}; choose one of: {listed}")


def unknown_source(kind: str, name: str, choices: Sequence[str]) -> ConfigError:
    """Return the error for a name that may also be a path: a missing file, or an unknown name."""
    path = name.rpartition("=")[2]
    is_path = "/" in path or (Path(path).suffix and ":" not in path)
    if not is_path or Path(path).exists():
        return unknown_name(kind, name, choices)
    return ConfigError(f"{path} does not exist; give the path of a {kind} that does, or a name")
