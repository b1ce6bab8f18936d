"""The site's search in a real browser, from a disk and without a network."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the first page of a small site with the settings of the real one."""
    folder = tmp_path_factory.mktemp("site")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for name in ("hooks", "nav", "extra_css"):
        del settings[name]
    settings["plugins"] = ["search", "offline"]
    (folder / "docs" / "deep").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "iframe-worker.js", folder / "docs")
    (folder / "docs" / "index.md").write_text("# Start\n\nNothing.\n", encoding="utf-8")
    (folder / "docs" / "deep" / "page.md").write_text("# Coils\n\nAn aardvark.\n", encoding="utf-8")
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    build(load_config(str(folder / "mkdocs.yml")))
    return folder / "site"


def assert_all_local(urls: list[str]) -> None:
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []


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
