"""Where the command line prints: names and paths appear as they are, whatever they hold."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from kscout.names.renamed import check_current

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM, as a batch system sends it before it kills."""


class Commands(TyperGroup):
    """A group whose help tells the whole first sentence of each command."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own
        """Run a command; the error for an option of version 0.2 prints its new name."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            check_current("option", str(getattr(error, "option_name", "")))
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's own
        """Write the list of commands, in lines as long as they need."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            rows = [(name, one.get_short_help_str(1000)) for name, one in found if one is not None]
            formatter.write_dl(rows)


@final
class Stopped(SystemExit):
    """A command was stopped by a signal, and says itself what becomes of its work."""

    def __init__(self, code: int, told: str) -> None:
        super().__init__(code)
        self.told = told


def counted(number: int, word: str) -> str:
    """Return a number of things, of which one is told in the singular."""
    return f"{number} {word}{'' if number == 1 else 's'}"


@contextmanager
def stopping(told: Callable[[], str]) -> Iterator[None]:
    """Tell a user who stops what is inside more than that it goes on, which may not be true."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(128 + signal.SIGINT, told()) from None
    except SystemExit as stop:
        if stop.code == TERMINATED:
            raise Stopped(TERMINATED, told()) from None
        raise


def printable(text: str) -> str:
    """Return text that cannot command the terminal: what is no letter is shown by its number."""
    return "".join(x if x.isprintable() or x == "\n" else ascii(x)[1:-1] for x in text)


class _Plain(Console):
    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's own
        """Return what is shown of a string, alone or in a table."""
        return super().render_str(printable(text), **options)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that reads no markup: a policy may be called `[/x]`."""
    return _Plain(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def answer_console() -> Console:
    """Return a console for tables: as wide as the terminal, or wide enough for a file."""
    found = console()
    return found if found.is_terminal else console(width=max(found.width, 120))
