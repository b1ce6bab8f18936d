"""What the documents say holds as far as a machine can tell: commands, links, no machine paths."""

import importlib
import json
import re
import shlex
import string
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import kscout
from kscout.apps.cli import app
from website.command_line import commands

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for folder in (".", "docs", "docs/*") for page in ROOT.glob(f"{folder}/*.md"))
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
TEXTS = [*PAGES, *CONFIGS, *sorted((ROOT / "examples").glob("*.py")), ROOT / "Makefile"]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|Users|mnt|private)/\w|[A-Z]:\\\w")
PROMPT = re.compile(r"^\s*(?:\$ |# {2,}|\w+=\S+ )*(?:\.venv/bin/)?(?=kscout )")
LINK = re.compile(r"""(?:\]\(|\bsrc(?:set)?=")([^)"\s]+)[)"]""")
COMMANDS: Any = typer.main.get_command(app)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find the modules that pages show."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "outside")


def code_lines(text: str) -> Iterator[str]:
    """Yield the lines of fenced and indented code, continued lines joined."""
    is_fenced, pending = False, ""
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            pending += line.strip()
            if pending.endswith("\\"):
                pending = pending[:-1]
            else:
                yield pending
                pending = ""


def block_commands(path: Path) -> list[str]:
    """Return the kscout commands that a page shows in code, or a TOML file in its head."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines() if path.suffix == ".toml" else list(code_lines(text))
    return [PROMPT.sub("", line) for line in lines if PROMPT.match(line)]


def inline_commands(path: Path) -> list[str]:
    """Return the kscout commands that a page names within a sentence; they may be fragments."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    spans = re.findall(r"`(kscout [^`]+)`", prose)
    return [" ".join(span.split()) for span in spans]


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Follow the words to a command; return it with the words that are left."""
    command, rest = COMMANDS, words
    # Options of `kscout` itself stand before the command.
    while rest[:1] == ["--use"]:
        rest = rest[2:]
    while hasattr(command, "commands") and rest and rest[0] not in ("...", "--help", "--version"):
        assert rest[0] in command.commands, f"there is no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def check_options_exist(command: Any, rest: list[str]) -> None:
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for word in rest:
        if word.startswith("-"):
            assert word.partition("=")[0] in known | {"--help"}, f"there is no option {word}"


def check_parses(line: str) -> None:
    """Parse a command line as typing it would, without running it."""
    command, rest = find_command(shlex.split(line, comments=True)[1:])
    if "..." in rest or "--help" in rest:
        check_options_exist(command, rest)
        return
    assert not hasattr(command, "commands"), "a command is missing after the group's name"
    command.make_context(command.name, list(rest))


@pytest.mark.parametrize("path", [*PAGES, *CONFIGS], ids=name_of)
def test_every_command_shown_in_code_parses(path: Path) -> None:
    for line in block_commands(path):
        try:
            check_parses(line)
        except Exception as error:
            pytest.fail(f"{name_of(path)}: {line}: {error}")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_named_in_a_sentence_exists(path: Path) -> None:
    for span in inline_commands(path):
        check_options_exist(*find_command(span.split()[1:]))


HELPS = {words: command.help for words, command in commands()}


def example_of(name: str) -> str:
    found = re.search(r"Example: (kscout .*?)(?:\n\n|$)", HELPS[name], flags=re.DOTALL)
    assert found, f"{name} has no example"
    return found.group(1)


@pytest.mark.parametrize("name", HELPS)
def test_every_help_has_an_example_that_parses(name: str) -> None:
    check_parses(example_of(name))
    assert example_of(name).startswith(name)


def test_examples_of_the_help_use_what_other_examples_make() -> None:
    words = {name: shlex.split(example_of(name)) for name in HELPS}
    made = {pair[1] for one in words.values() for pair in pairwise(one) if pair[0] == "--out"}
    for name, one in words.items():
        for path in (word.rpartition("=")[2] for word in one):
            if re.match(r"(?:stores|runs|results)/", path):
                assert any(path == out or path.startswith(f"{out}/") for out in made), name


def test_pages_show_commands_at_all() -> None:
    # Else the search for commands, and not the pages, might be what is empty.
    shown = {line.split()[1] for path in PAGES for line in block_commands(path)}
    assert {"data", "train", "evaluate", "campaign", "report"} <= shown


def test_components_of_the_guide_keep_their_contract() -> None:
    text = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "guide"}
    for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[:4]:
        exec(code, names)
    assert {"Spectrum", "Unrolled"} <= set(names)


def test_the_campaign_of_the_guide_can_be_planned(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "campaigns.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "guide.toml").write_text(toml)
    out = ("--out", str(tmp_path / "campaign"))
    status = json.loads(kscout("campaign", "status", tmp_path / "guide.toml", *out, "--json"))
    # Two horizons, two reconstructions: greedy with five seeds, two gammas with three.
    assert status["trainings"] == 2 * 2 * (5 + 2 * 3) + 1


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    dropped = string.punctuation.replace("-", "").replace("_", "")
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (heading.lower().translate(str.maketrans("", "", dropped)) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    # Code may hold brackets that are no links.
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{name_of(path)} links to {link}, which does not exist"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(target), f"{name_of(path)} links to {link}: no such heading"


def test_the_page_on_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "developers" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/[\w./-]+\.(?:py|cu|toml))`", text))
    assert len(named) > 5
    for name in sorted(named):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "src" / "kscout")), name


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_no_text_names_a_machine(path: Path) -> None:
    found = MACHINE_PATH.search(path.read_text(encoding="utf-8"))
    assert found is None, f"{name_of(path)} names {found and found.group(0)}"


PUBLIC = {
    *("kscout", "kscout.acquisition", "kscout.core", "kscout.data", "kscout.evaluation"),
    *("kscout.metrics", "kscout.names", "kscout.physics", "kscout.policies"),
    *("kscout.reconstruction", "kscout.training", "kscout.gym_env"),
    *("kscout.physics.coils", "kscout.reconstruction.sense"),
}
IMPORT = re.compile(r"^from (kscout[\w.]*) import (.+)$", flags=re.MULTILINE)


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=name_of)
def test_documents_import_public_names_only(path: Path) -> None:
    for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        assert module in PUBLIC, f"{module} is not public"
        exported = importlib.import_module(module).__all__
        for name in names.split(","):
            assert name.strip() in exported, f"{module} does not export {name.strip()}"


def test_files_that_the_readme_makes_are_ignored_by_git() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    outputs = re.findall(r"(?:-o|--out) (\S+)", text)
    assert "report.html" in outputs
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert {Path(output).parts[0] for output in outputs} <= ignored
