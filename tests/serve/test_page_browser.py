"""The page in a real browser: it fits, is quiet, plays, is steered by pointer and keyboard."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from page_backend import make_backend, write_store
from test_app import maker

from kscout.apps.serve.app import make_app
from kscout.apps.serve.guard import LOOPBACK, Guard
from kscout.apps.serve.sessions import Limits, Sessions

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SIZE = 128


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import uvicorn

    backend = make_backend(write_store(tmp_path_factory.mktemp("page"), SIZE, SIZE))
    limits = Limits(n_bytes=2**22)
    app = Guard(make_app(Sessions(maker(), limits=limits), backend), hosts=LOOPBACK, n_bytes=2**22)
    config = uvicorn.Config(app, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


class Shown:
    """A page, and all that it said or asked of others."""

    def __init__(self, browser: Any, address: str, state: str = "", **how: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **how)
        self.trouble: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, address))
        self.page.set_default_timeout(600_000)
        self.page.goto(f"{address}#{state}")
        self.settled()

    def _asked(self, url: str, address: str) -> None:
        if not url.startswith(("data:", "blob:", address)):
            self.trouble.append(url)

    def settled(self) -> None:
        self.page.wait_for_selector("#stage[aria-busy=false]", state="attached")

    @property
    def cards(self) -> list[str]:
        return self.page.locator("#stage .card:not(.target) b").all_inner_texts()

    def positions(self) -> list[str]:
        found = self.page.locator("#stage .card:not(.target) .shot")
        return found.evaluate_all("(all) => all.map((one) => one.style.objectPosition)")

    def state(self) -> str:
        # The address follows a moment later by itself, at once where it is to be copied.
        self.page.locator("#link").click()
        return self.page.evaluate("decodeURIComponent(location.hash)")


@pytest.fixture(scope="module")
def shown(browser: Any, address: str) -> Iterator[Shown]:
    shown = Shown(browser, address, "policies=center-out|random&n_initial=16&n_steps=16")
    yield shown
    assert shown.trouble == [], "the page is quiet, and asks nobody else"
    shown.page.close()


def test_it_fits_phone_and_desktop_in_light_and_dark(shown: Shown) -> None:
    page = shown.page
    for width, height in ((390, 844), (1280, 900)):
        page.set_viewport_size({"width": width, "height": height})
        widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1], "the page does not scroll sideways"
    for scheme, is_dark in (("dark", True), ("light", False)):
        page.emulate_media(color_scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
        assert (int(ground) < 60) == is_dark


def test_two_policies_play_in_step_and_scrub_by_keyboard(shown: Shown) -> None:
    slider, told = shown.page.locator("#stage input[type=range]"), "#stage .controls output"
    assert shown.cards == ["center-out", "random"]
    slider.press("End")
    assert shown.positions() == ["50% 100%"] * 2
    assert shown.page.locator(told).inner_text() == "step 16 of 16"
    assert "step=16" in shown.state()
    slider.press("Home")
    shown.page.locator("#stage .speed").select_option("50")
    shown.page.locator("#stage .play").press("Enter")
    shown.page.locator(told, has_text="step 16 of 16").wait_for()
    assert len(set(shown.positions())) == 1
    slider.press("Home")
    shown.page.evaluate("document.querySelector('.target .kspace').decode()")
    lit = shown.page.evaluate(
        "(() => { const canvas = document.querySelector('canvas.kspace');"
        "const {data} = canvas.getContext('2d').getImageData(0, 64, 128, 1);"
        "return [...Array(128).keys()].filter((i) => data[4 * i + 3] > 0); })()"
    )
    assert lit == list(range(56, 72)), "k-space holds the columns of the start alone"


def test_a_column_is_taken_by_click_then_by_keyboard_and_compared(shown: Shown) -> None:
    page = shown.page
    page.locator("#stage input[type=range]").press("Home")
    canvas = page.locator("#stage canvas.kspace").first
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 20.5 / SIZE, "y": 9})
    shown.settled()
    assert shown.cards == ["center-out", "random", "you"]
    rows = page.locator("#yours tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["you", "center-out", "random", "oracle"]
    assert rows[0].split()[1] == "20" and "column 20" in page.locator("#status").inner_text()
    assert "step 1 of 16" in page.locator("#stage .controls").inner_text()
    mine = page.locator("#stage canvas.kspace").last
    mine.focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    assert mine.get_attribute("aria-valuenow") == "44"
    page.keyboard.press("Enter")
    shown.settled()
    assert "column 2 of 16" in page.locator("#verdict").inner_text()
    assert "own=20,44" in shown.state()
    page.locator("#back").click()
    shown.settled()
    assert "column 1 of 16" in page.locator("#verdict").inner_text()
    page.locator("#clear").click()
    shown.settled()
    assert not page.locator("#yours").is_visible()
    assert "own" not in shown.state()


def test_an_address_shows_the_same_state_elsewhere(browser: Any, address: str) -> None:
    state = (
        "source=test&slice=4&reconstruction=zero-filled-weighted&policies=random|oracle"
        "&n_initial=100&n_steps=3&own=0,127&step=2"
    )
    other = Shown(browser, address, state, color_scheme="dark")
    assert other.cards == ["random", "oracle", "you"] and other.state() == f"#{state}"
    page = other.page
    assert page.locator("[name=volume] option:checked").inner_text() == "b"
    assert page.locator("[name=n_steps]").input_value() == "3"
    assert "step 2 of 3" in page.locator("#stage .controls").inner_text()
    assert other.trouble == []
    page.close()


def test_what_goes_wrong_is_told_on_the_page(browser: Any, address: str) -> None:
    other = Shown(browser, address, "source=test&n_initial=120&n_steps=60")
    page, told = other.page, other.page.locator("#status.bad")
    assert "lower the number of steps" in told.inner_text()
    page.route("**/page/data/**", lambda route: route.abort())
    page.locator("[name=n_steps]").fill("2")
    told.filter(has_text="The service does not answer; start it again").wait_for()
    page.unroute("**/page/data/**")
    page.locator("[name=n_steps]").fill("3")
    page.locator("#status:not(.bad)", has_text="zero-filled").wait_for()
    page.close()
