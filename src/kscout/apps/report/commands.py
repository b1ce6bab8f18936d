"""Commands on a page, and the recommended next one."""

import re
import shlex
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from kscout.figures.blocks import Block, Prose, Widget
from kscout.json_types import JsonObject
from kscout.runs import RunRecord

_LINE_LENGTH = 84
_CODE_STYLE = (
    "overflow-x:auto;background:var(--panel);padding:.8rem 1rem;border-radius:8px;"
    "font-size:.82rem;line-height:1.5;margin:0 0 1rem"
)
_OUT = "results"
_MOST_RUNS = 5
"""Largest number of runs in one command."""


def as_shell(words: Sequence[str]) -> str:
    """Return a command for a shell, wrapped to the page width; options stay with their value."""
    parts = re.split(" (?=--)", shlex.join(words))
    # Spaces inside a part are hidden from the wrapping.
    command = " ".join(part.replace(" ", "\0") for part in parts)
    lines = textwrap.wrap(command, _LINE_LENGTH, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines).replace("\0", " ")


def code_html(text: str) -> str:
    """Return lines of code for copying."""
    return f'<pre tabindex="0" style="{_CODE_STYLE}"><code>{escape(text)}</code></pre>'


def how_to_see(runs: Sequence[RunRecord]) -> tuple[Block, ...]:
    """Return the command that makes pictures of runs that have only been trained."""
    policies = [run for run in runs if "acquisition" in run.config]
    if not runs:
        return ()
    if not policies:
        text = "No image was kept while training. These commands show reconstructions side by side:"
        words = ["kscout", "analyze", "reconstructions", "zero-filled", *_paths(runs)]
        words += ["--data", _given(runs[0], "--data", "STORE"), "--acceleration", "4"]
        words += ["--out", _OUT]
    else:
        text = (
            "No acquisition was recorded while training. These commands compare policies on test "
            "data, record some of them and show them:"
        )
        words = _evaluation(policies)
    shown = ["kscout", "report", _OUT, "--out", "report.html"]
    lines = f"{as_shell(words)}\n{as_shell(shown)}"
    return Prose(text), Widget(code_html(lines))


def _evaluation(runs: Sequence[RunRecord]) -> list[str]:
    first = runs[0]
    setting = first.config["acquisition"]
    protocol = _protocol(first)
    alike = [
        run for run in runs if run.config["acquisition"] == setting and _protocol(run) == protocol
    ][:_MOST_RUNS]
    is_joint = first.kind == "joint"
    # A policy of joint training is only evaluated with its own network.
    alike = [first] if is_joint else alike
    network = _paths([first])[0] if is_joint else _given(first, "--reconstructor", "RECONSTRUCTOR")
    options: JsonObject = {"data": _given(first, "--data", "STORE"), "reconstructor": network}
    initial = setting.get("initial")
    options |= {"n-initial": setting.get("n_initial")} if initial is None else {"initial": initial}
    options |= {"steps": setting.get("horizon")}
    options |= {"columns-per-step": setting.get("columns_per_step"), "protocol": protocol}
    words = ["kscout", "evaluate"]
    for name, value in options.items():
        words += [] if value is None else [f"--{name}", str(value)]
    for policy in ("random", "fixed", *_paths(alike)):
        words += ["--policy", policy]
    return [*words, "--out", _OUT]


def _protocol(run: RunRecord) -> str | None:
    """Return the protocol of a training, None if its record has none."""
    protocol: str | None = run.config.get("training", {}).get("protocol")
    return protocol


def _paths(runs: Sequence[RunRecord]) -> list[str]:
    here = Path.cwd()
    return [
        str(run.path.relative_to(here) if run.path.is_relative_to(here) else run.path)
        for run in runs
    ]


def _given(run: RunRecord, option: str, otherwise: str) -> str:
    """Return an option of a run's own command, if it can be read."""
    try:
        words = shlex.split(run.provenance.command)
    except ValueError:
        return otherwise
    joined = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    apart = [after for word, after in pairwise(words) if word == option]
    return next(iter([*joined, *apart]), otherwise)
