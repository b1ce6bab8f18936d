"""The reference of the command line, from the commands themselves."""

import html
import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from kscout.apps.cli import app
from kscout.apps.report.page import as_shell

_HEAD = """# Command line

This page is generated from the commands, as `--help` shows them. `--json` prints one JSON object
for scripts. An error message states what was found, what was expected and what to change.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with all its words, groups before their commands."""
    yield from _walk("kscout", typer.main.get_command(app))


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _walk(f"{words} {name}", child)


def code(text: str) -> str:
    """Return text as code that may stand in a cell of a table."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def prose(text: str) -> str:
    """Return a sentence escaped for Markdown, with quoted parts as code."""
    parts = re.split(r"`([^`]*)`", re.sub(r"\s+", " ", text))
    parts[::2] = [
        re.sub(r"([\\*_|\[\]])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]
    ]
    parts[1::2] = [code(part) for part in parts[1::2]]
    return "".join(parts)


def options_of(words: str, command: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    """Return the form and the meaning of each option and argument."""
    context = command.make_context(words, [], resilient_parsing=True)
    records = [(item, item.get_help_record(context)) for item in command.params if not item.hidden]
    return [record or (item.name.upper(), "") for item, record in records]


def _section(words: str, command: Any) -> str:  # noqa: ANN401
    context = command.make_context(words, [], resilient_parsing=True)
    text, _, example = (command.help or "").partition("Example: ")
    example, _, after = example.partition("\n\n")
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    parts = [f"{'##' if words.count(' ') < 2 else '###'} {words}"]
    parts += [prose(one) for one in (*text.split("\n\n"), *after.split("\n\n")) if one.strip()]
    parts.append(f"```console\n{usage}\n```")
    if example:
        parts += ["For example:", f"```bash\n{as_shell(shlex.split(example))}\n```"]
    if rows := options_of(words, command):
        cells = "".join(f"| {code(name)} | {prose(what)} |\n" for name, what in rows)
        parts.append(f"| option or argument | meaning |\n|---|---|\n{cells}")
    return "\n\n".join(parts)


def command_line_page() -> str:
    """Return the page."""
    return "\n\n".join([_HEAD, *(_section(*one) for one in commands())])
