"""Consoles of the command line, which print names and paths without interpreting markup."""

import json
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, final

import typer
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from kscout.errors import ConfigError, naming_options
from kscout.files import finite
from kscout.names.renamed import check_current

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM, which batch systems send before they kill a process."""


class Commands(TyperGroup):
    """A group whose help prints the complete first sentence of each command."""

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401 - typer's own
        """Run a command; the error for a renamed or misplaced option prints the correct one."""
        try:
            with naming_options():
                return super().invoke(ctx)
        except Exception as error:
            name, where = getattr(error, "option_name", ""), getattr(error, "ctx", None)
            check_current("option", str(name))
            check_current("option", f"{getattr(where, 'info_name', '')} {name}")
            if name == "--use":
                words: list[str] = []
                while where is not None and where.parent is not None:
                    words, where = [where.info_name, *words], where.parent
                raise ConfigError(
                    f"--use comes before the command: kscout --use MODULE {' '.join(words)} ..."
                ) from error
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own
        """Write the list of commands, in lines of any length."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            rows = [(name, one.get_short_help_str(1000)) for name, one in commands if one]
            formatter.write_dl(rows)


@final
class Stopped(SystemExit):
    """A command was stopped by a signal, and describes the state of its work."""

    def __init__(self, code: int, outcome: str) -> None:
        super().__init__(code)
        self.outcome = outcome


def counted(number: int, word: str) -> str:
    """Return a number with its noun, in the singular for one."""
    return f"{number} {word}{'' if number == 1 else 's'}"


@contextmanager
def stopping(outcome: Callable[[], str]) -> Iterator[None]:
    """Replace the general message on interruption by the outcome of the command inside."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(128 + signal.SIGINT, outcome()) from None
    except SystemExit as stop:
        if stop.code == TERMINATED:
            raise Stopped(TERMINATED, outcome()) from None
        raise


def printable(text: str) -> str:
    """Return a text with escapes for control characters."""
    return "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in text)


@final
class PlainLines(logging.StreamHandler[TextIO]):
    """Writes log messages, which may quote files, with escapes for control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Plain(Console):
    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's own
        """Return a string as plain text, also in tables."""
        return super().render_str(printable(text), **options)

    def render(self, *renderable: Any, **options: Any) -> Iterator[Segment]:  # noqa: ANN401
        """Yield what is printed; texts that were not strings are plain here."""
        for segment in super().render(*renderable, **options):
            plain = segment.control or segment.text.isprintable()
            yield segment if plain else segment._replace(text=printable(segment.text))


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console without markup, because a policy may have the name `[/x]`."""
    return _Plain(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def print_result(record: object, *parts: str | Table, as_json: bool = False) -> None:
    """Print the result of a command as JSON, or as lines and tables.

    Tables are at least 120 characters wide in files.
    """
    if as_json:
        typer.echo(json.dumps(finite(record)))
        return
    terminal = console()
    output = terminal if terminal.is_terminal else console(width=max(terminal.width, 120))
    for part in parts:
        output.print(part, soft_wrap=isinstance(part, str))
