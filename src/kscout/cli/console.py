"""Where the command line prints: names and paths appear as they are, whatever they hold."""

from rich.console import Console


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that reads no markup: a policy may be called `[/x]`."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def answer_console() -> Console:
    """Return a console for tables: as wide as the terminal, or wide enough for a file."""
    found = console()
    return found if found.is_terminal else console(width=max(found.width, 120))
