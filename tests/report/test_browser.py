"""The page in a real browser: it fits, is quiet, fetches nothing, and the player plays."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kscout.apps.player import save_acquisition
from kscout.apps.report.build import build_report, write_report
from kscout.apps.report.page import Front, write_page
from kscout.figures.blocks import Section
from kscout.figures.tables import Column, Measured, Row, Table
from synthetic_results import make_acquisition, write_evaluation, write_run

pytestmark = pytest.mark.browser

OpenPage = Callable[..., Any]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


_ROWS = tuple(Row((name, Measured(value))) for name, value in (("random", 0.5), ("greedy", 0.6)))


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    save_acquisition(make_acquisition(), write_evaluation(folder / "base") / "acquisition.npz")
    write_run(folder / "greedy-seed0")
    (path,) = write_report(build_report([folder]), folder / "report.html")
    return path


@pytest.fixture
def open_page(browser: Any, page_path: Path) -> Iterator[OpenPage]:
    """Opens a page, by default that of the report; at the end no page may have complained."""
    pages, trouble, urls = [], [], []

    def opened(size: str, scheme: str, path: Path = page_path) -> Any:
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        page = browser.new_page(viewport=viewport, color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: urls.append(request.url))
        # The player's clock is turned by the tests, and a slow machine may take its time.
        page.set_default_timeout(600_000)
        page.clock.install(time=0)
        page.goto(path.as_uri())
        page.clock.pause_at(3_600_000)
        return page

    yield opened
    for page in pages:
        page.close()
    assert trouble == [] and all(url.startswith(("data:", "file:")) for url in urls)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_and_is_quiet(open_page: OpenPage, size: str, scheme: str) -> None:
    page = open_page(size, scheme)
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], "the page does not scroll sideways"
    back, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        ".map((text) => Number(text.match(/\\d+/)[0]))"
    )
    assert (back > 200 > 60 > ink) if scheme == "light" else (back < 60 < 200 < ink)


def test_a_table_that_fits_has_no_scroll_bar(open_page: OpenPage, tmp_path: Path) -> None:
    table = Table("Best last", (Column("policy"), Column("SSIM", best="max")), _ROWS, "", "best")
    path = write_page(Front("t", ("s",)), [Section("a", (table,))], tmp_path / "page.html")
    page = open_page("desktop", "light", path)
    widths = page.locator(".scroll").evaluate("(it) => [it.scrollWidth, it.clientWidth]")
    assert page.locator("td strong").count() == 1 and widths[0] <= widths[1]


def test_the_player_steps_by_keyboard_and_plays(open_page: OpenPage) -> None:
    page = open_page("phone", "light")
    slider, score = page.locator(".player input[type=range]"), page.locator(".score").first
    assert page.locator(".controls output").inner_text() == "step 0 of 9", "it opens at the start"
    first, picture = score.inner_text(), page.locator(".shot").nth(1)
    slider.press("End")
    assert score.inner_text() != first
    assert picture.evaluate("(it) => it.style.objectPosition") == "50% 100%"
    slider.press("Home")
    slider.press("ArrowRight")
    assert picture.evaluate("(it) => it.style.objectPosition").startswith("50% 11.1")
    cards = page.locator(".card:not(.target)")
    assert [cards.nth(at).is_visible() for at in range(3)] == [True, True, True]
    page.locator(".choice input").nth(1).uncheck()
    assert [cards.nth(at).is_visible() for at in range(3)] == [True, False, True]
    button = page.locator(".play")
    button.press("Enter")
    assert button.get_attribute("aria-label") == "Pause"
    page.clock.run_for(599)
    assert page.locator(".controls output").inner_text() == "step 1 of 9"
    page.clock.run_for(601)
    assert page.locator(".controls output").inner_text() == "step 3 of 9"
    button.press("Enter")
    assert button.get_attribute("aria-label") == "Play"


def test_the_mask_strip_shows_start_and_acquired_columns(open_page: OpenPage) -> None:
    page = open_page("desktop", "light")
    page.locator(".player input[type=range]").press("End")
    colors = page.evaluate(
        "(() => { const canvas = document.querySelector('canvas.strip');"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, 1).data;"
        "return [...Array(canvas.width).keys()].map((i) => data.slice(4*i, 4*i+3).join()); })()"
    )
    acquisition = make_acquisition()
    newest = acquisition.policies[0].columns[-1]
    assert len({colors[column] for column in acquisition.start_columns}) == 1
    assert colors.count(colors[newest]) == 1
    assert len(set(colors)) == 4


def test_figures_enlarge_and_close_again(open_page: OpenPage) -> None:
    page = open_page("desktop", "dark")
    page.locator("figure.drawing .zoom").first.press("Enter")
    dialog = page.locator("#magnifier")
    assert dialog.is_visible() and dialog.locator("svg").count() == 1
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_the_page_prints(open_page: OpenPage) -> None:
    page = open_page("desktop", "dark")
    page.emulate_media(media="print")
    assert not page.locator(".controls").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf()[:5] == b"%PDF-"
