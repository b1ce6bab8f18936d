"""Pages keep their budget of words, plain technical English, and numbers in their place."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer

from kscout.apps.cli import app
from website.settings import settings_page

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES = sorted((ROOT / "docs").rglob("*.md")) + [ROOT / name for name in TOP]
CARDS = sorted((ROOT / "src" / "kscout" / "zoo").glob("*.md"))
BUDGETS = {
    "docs/index.md": 250,
    "docs/start/choosing.md": 500,
    "docs/start/*": 350,
    "docs/tutorials/*": 650,
    "docs/how-to/train-reconstruction.md": 500,
    "docs/how-to/extend.md": 1300,
    "docs/how-to/*": 900,
    "docs/concepts/protocols.md": 900,
    "docs/concepts/*": 500,
    "docs/results/did-not-help.md": 550,
    "docs/results/*": 450,
    "docs/reference/glossary.md": 50,
    "docs/reference/*": 350,
    "docs/developers/architecture.md": 1000,
    "docs/developers/*": 700,
    "README.md": 1000,
    "CONTRIBUTING.md": 700,
    "SECURITY.md": 500,
    "CHANGELOG.md": 1000,
}
"""Words outside tables and code; the first pattern that fits counts."""
DIALECT = re.compile(
    r"\b(told|tells?|untold|anew|weighed|imagin(?:e[sd]?|ing)|overlooked|of before|goes on"
    r"|mend(?:ed)?|so many|as many as|besides?|whoever|likewise|nobody|but for|refuse[sd]?"
    r"|judge[sd]?|trainees?|contenders?|remember(?:s|ed)?|recalled|worth|handed|the truth"
    r"|that looks|of one's own|lies (?:above|below|between)|as it stays|house|coarser"
    r"|drawn (?:knees?|heads?|brains?))\b",
    re.IGNORECASE,
)
"""Words with a plainer replacement, such as report, combine, next to, resume, reject, evaluate."""
DECIMAL = re.compile(r"(?<![\d.])\d?\.\d{3,}\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """Return a page without code, tables and comments."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"(?m)^\|.*$|```[\s\S]*?```|^ {4,}\S.*$|<!--[\s\S]*?-->", "", text)


def helps(command: Any, *names: str) -> Iterator[tuple[str, str]]:
    yield (
        " ".join(names),
        " ".join(
            filter(None, [command.help, *(getattr(one, "help", "") for one in command.params)])
        ),
    )
    for name, child in getattr(command, "commands", {}).items():
        yield from helps(child, *names, name)


HELPS = dict(helps(typer.main.get_command(app), "kscout"))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_keeps_its_budget_of_words(path: Path) -> None:
    budget = next(n for pattern, n in BUDGETS.items() if fnmatch(name_of(path), pattern))
    assert len(prose(path).split()) <= budget


def test_the_site_keeps_its_budget_of_words() -> None:
    assert (
        sum(len(prose(path).split()) for path in PAGES if name_of(path).startswith("docs/"))
        <= 20_000
    )


@pytest.mark.parametrize("path", [*PAGES, *CARDS], ids=name_of)
def test_a_page_avoids_words_with_a_plainer_replacement(path: Path) -> None:
    text = re.sub(r"```[\s\S]*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"))
    assert DIALECT.findall(text) == []


@pytest.mark.parametrize("name", HELPS)
def test_help_avoids_words_with_a_plainer_replacement(name: str) -> None:
    assert DIALECT.findall(HELPS[name]) == []


def test_the_page_of_settings_avoids_words_with_a_plainer_replacement() -> None:
    assert DIALECT.findall(re.sub(r"<code>.*?</code>", "", settings_page())) == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_results_stand_on_the_pages_of_results(path: Path) -> None:
    if "results" in path.parts or name_of(path) in ("README.md", "CHANGELOG.md"):
        return
    text = re.sub(r"```[\s\S]*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"))
    assert DECIMAL.findall(text) == []


def test_a_release_has_at_most_ten_entries() -> None:
    releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for release in releases:
        assert len(re.findall(r"^- ", release, flags=re.MULTILINE)) <= 10
