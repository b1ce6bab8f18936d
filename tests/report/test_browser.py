"""The page in a real browser: it fits, is quiet, fetches nothing, and the player plays."""

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

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


_ROWS = tuple(Row((name, Measured(value))) for name, value in (("random", 0.5), ("greedy", 0.6)))


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    save_acquisition(make_acquisition(), write_evaluation(folder / "base") / "acquisition.npz")
    write_run(folder / "greedy-seed0")
    (path,) = write_report(build_report([folder]), folder / "report.html")
    return path


def open_page(browser: Any, path: Path, size: str, scheme: str) -> tuple[Any, list[str]]:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(("data:", "file:")) else trouble.append(request.url)
        ),
    )
    # The player's clock is turned by the tests, and a slow machine may take its time.
    page.set_default_timeout(600_000)
    page.clock.install(time=0)
    page.goto(path.as_uri())
    page.clock.pause_at(3_600_000)
    return page, trouble


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_and_is_quiet(browser: Any, page_path: Path, size: str, scheme: str) -> None:
    page, trouble = open_page(browser, page_path, size, scheme)
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], "the page does not scroll sideways"
    back, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        ".map((text) => Number(text.match(/\\d+/)[0]))"
    )
    assert (back > 200 > 60 > ink) if scheme == "light" else (back < 60 < 200 < ink)
    assert trouble == []
    page.close()


def test_a_table_that_fits_has_no_scroll_bar(browser: Any, tmp_path: Path) -> None:
    table = Table("Best last", (Column("policy"), Column("SSIM", best="max")), _ROWS, "", "best")
    path = write_page(Front("t", ("s",)), [Section("a", (table,))], tmp_path / "page.html")
    page, _ = open_page(browser, path, "desktop", "light")
    widths = page.locator(".scroll").evaluate("(it) => [it.scrollWidth, it.clientWidth]")
    assert page.locator("td strong").count() == 1 and widths[0] <= widths[1]
    page.close()


def test_the_player_steps_by_keyboard_and_plays(browser: Any, page_path: Path) -> None:
    page, trouble = open_page(browser, page_path, "phone", "light")
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
    assert trouble == []
    page.close()


def test_the_mask_strip_shows_start_and_acquired_columns(browser: Any, page_path: Path) -> None:
    page, _ = open_page(browser, page_path, "desktop", "light")
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
    page.close()


def test_figures_enlarge_and_close_again(browser: Any, page_path: Path) -> None:
    page, trouble = open_page(browser, page_path, "desktop", "dark")
    page.locator("figure.drawing .zoom").first.press("Enter")
    dialog = page.locator("#magnifier")
    assert dialog.is_visible() and dialog.locator("svg").count() == 1
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert trouble == []
    page.close()


def test_the_page_prints(browser: Any, page_path: Path) -> None:
    page, _ = open_page(browser, page_path, "desktop", "dark")
    page.emulate_media(media="print")
    assert not page.locator(".controls").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf()[:5] == b"%PDF-"
    page.close()
