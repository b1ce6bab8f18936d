"""The site has every page, and shows what the code says."""

import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown import Markdown
from mkdocs.commands.build import build
from mkdocs.config import load_config

from kscout.config import settings_class
from kscout.config.options import options_of as settings_of
from kscout.names import ESTIMATORS, SAMPLERS
from test_docs import PUBLIC
from website.api import ROOMS, api_pages, members_of
from website.command_line import command_line_page, commands, options_of, prose
from website.drawings import DRAWINGS, MARKER, palette, with_drawings
from website.links import ROOT, outside_files, with_site_links
from website.player import MARKER as PLAYER
from website.settings import settings_page

SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
MADE = {"reference/cli.md", "reference/settings.md"}
NAVIGATION = yaml.safe_load(SETTINGS)["nav"]


def pages_of(entry: object) -> list[str]:
    """Return the pages of a part of the navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages_of(part)]


def test_every_page_has_one_place_in_the_navigation() -> None:
    pages = pages_of(NAVIGATION)
    written = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    assert len(pages) == len(set(pages))
    assert written <= set(pages)
    assert set(pages) - written <= set(outside_files()) | set(api_pages()) | MADE
    assert MADE | set(api_pages()) <= set(pages)


def test_links_out_of_docs_lead_to_copies_in_the_site() -> None:
    text = "[a](../CONTRIBUTING.md#rules) [b](../examples) [c](index.md) [d](https://x.org/y.md)"
    assert with_site_links(text, "index.md") == (
        "[a](repository/CONTRIBUTING.md#rules) [b](repository/examples/index.md) "
        "[c](index.md) [d](https://x.org/y.md)"
    )


def test_links_of_copies_lead_back_to_pages() -> None:
    text = "[a](docs/how-to/import-images.md) [b](SECURITY.md) [c](nowhere.md)"
    found = with_site_links(text, "repository/CONTRIBUTING.md")
    assert found == "[a](../how-to/import-images.md) [b](SECURITY.md) [c](nowhere.md)"


def test_every_link_of_a_copy_is_in_the_site() -> None:
    copies = outside_files()
    for uri, text in copies.items():
        if isinstance(text, str):
            for link in re.findall(r"\]\(([^)#:\s]+\.md)", with_site_links(text, uri)):
                target = Path(uri).parent / link
                path = (ROOT / "docs" / target).resolve()
                assert path.exists() or path.relative_to(ROOT / "docs").as_posix() in copies


def test_no_page_fetches_from_elsewhere() -> None:
    """The theme would fetch fonts, and its plugin for use offline a script."""
    settings = yaml.safe_load(SETTINGS)
    assert settings["theme"]["font"] is False
    assert any("iframe-worker" in script for script in settings["extra"]["polyfills"])
    for script in settings["extra"]["polyfills"]:
        assert (ROOT / "docs" / script).is_file()


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    page = html.unescape(command_line_page())
    for words, command in commands():
        _, section = page.split(f"# {words}\n", maxsplit=1)
        section = section.partition("\n## ")[0]
        for name, _ in options_of(words, command):
            assert f"<code>{name}</code>" in section
    assert not re.search(r"^\|[ |]*\|$", page, flags=re.MULTILINE), "a table without a head"


def test_the_page_of_settings_has_every_setting_of_the_trainings() -> None:
    page = settings_page()
    for table in (ESTIMATORS, SAMPLERS):
        for method in table:
            for option in settings_of(settings_class(method, table)):
                assert f"<code>{option.name}</code>" in page or option.name == "method"
    lines = page.splitlines()
    assert not [line for line in lines if line.endswith("|  |")], "settings without a meaning"


def test_a_sentence_of_the_help_stays_as_it_is() -> None:
    made = Markdown(extensions=["tables"]).convert(prose("a_b_c *x* [y](z) <w> | `k|<l>` 1\\2"))
    text = html.unescape(re.sub(r"<(/?(?:p|code))>", "", made))
    assert text == "a_b_c *x* [y](z) <w> | k|<l> 1\\2"


def test_the_python_reference_has_what_documents_may_import() -> None:
    assert set(ROOMS) == PUBLIC
    assert {"evaluate", "rollout"} <= set(members_of("kscout"))
    assert all(members_of(room) for room in ROOMS)


def test_no_public_name_is_also_a_module_of_its_package() -> None:
    """Else the Python reference shows the module."""
    for room in ROOMS:
        folder = ROOT / "src" / room.replace(".", "/")
        modules = {path.stem for path in folder.glob("*.py")} if folder.is_dir() else set()
        assert not modules & set(members_of(room)), room


def test_every_drawing_has_its_place() -> None:
    texts = [page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/*.md")]
    assert {name for text in texts for name, _ in MARKER.findall(text)} == set(DRAWINGS)


def test_the_home_page_opens_with_the_player() -> None:
    opening, _, _ = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("\n## ")
    assert PLAYER.search(opening)


def test_drawings_have_colors_in_light_and_dark() -> None:
    page = with_drawings("a <!-- drawing protocols: b --> c", lambda name: DRAWINGS[name]())
    assert page.startswith("a <figure") and page.endswith("</figure> c")
    used = set(re.findall(r"var\((--[\w-]+)\)", page))
    for scheme in palette().splitlines():
        assert used and used <= set(re.findall(r"(--[\w-]+):", scheme))
    assert len(palette().splitlines()) == 2


SEARCH_ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the first page of a small site with the settings of the real one."""
    folder = tmp_path_factory.mktemp("site")
    settings = yaml.safe_load((SEARCH_ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for name in ("hooks", "nav", "extra_css"):
        del settings[name]
    settings["plugins"] = ["search", "offline"]
    (folder / "docs" / "deep").mkdir(parents=True)
    shutil.copy(SEARCH_ROOT / "docs" / "iframe-worker.js", folder / "docs")
    (folder / "docs" / "index.md").write_text("# Start\n\nNothing.\n", encoding="utf-8")
    (folder / "docs" / "deep" / "page.md").write_text("# Coils\n\nAn aardvark.\n", encoding="utf-8")
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    build(load_config(str(folder / "mkdocs.yml")))
    return folder / "site"


def assert_all_local(urls: list[str]) -> None:
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.html", "deep/page.html"])
def test_search_finds_a_page_and_fetches_nothing(browser: Any, site: Path, name: str) -> None:
    page, fetched = browser.new_page(), []
    page.on("request", lambda request: fetched.append(request.url))
    page.set_default_timeout(600_000)
    page.goto((site / name).as_uri())
    assert_all_local(fetched)
    page.keyboard.press("/")
    page.keyboard.type("aardvark")
    found = page.locator(".md-search-result__item h1").first
    assert found.inner_text() == "Coils"
    assert_all_local(fetched)
    page.close()
