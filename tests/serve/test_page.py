"""The page's questions are answered from the simulator; files and messages are not trusted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from asgi_client import Client, requested
from page_backend import N_COLS, N_ROWS, make_backend, write_store
from test_app import sessions_of

from kscout.acquisition import Simulator
from kscout.acquisition.plan import Plan
from kscout.apps.serve.app import make_app
from kscout.apps.serve.guard import LOOPBACK, Guard
from kscout.apps.serve.page import backend as backend_module
from kscout.apps.serve.page import routes as routes_module
from kscout.apps.serve.page.backend import DisconnectedError, PageBackend, PageState
from kscout.apps.serve.page.interactive import InteractiveAcquisition
from kscout.data.kinds import KSPACE
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError
from kscout.evaluation.running.entries import resolve
from kscout.policies import save
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.zero_filled import ZeroFilled

ASKED: dict[str, Any] = {
    **{"source": "test", "slice": 3, "reconstruction": "zero-filled", "n_initial": 4},
    **{"policies": ["center-out", "oracle"], "n_steps": 5, "own": []},
}
PLACE = "/page/data"


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> PageBackend:
    return make_backend(write_store(tmp_path_factory.mktemp("page")))


@pytest.fixture(scope="module")
def client(backend: PageBackend) -> Iterator[Client]:
    guard = Guard(make_app(sessions_of(), backend), hosts=LOOPBACK, n_bytes=200_000)
    with Client(guard) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/docs", "/page/page.css", "/page/page.js"])
def test_pages_refer_to_no_other_host(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status == 200 and "default-src 'none'" in reply.headers["content-security-policy"]
    assert not re.findall(r"(?:https?:|wss?:)?//[\w.]", re.sub(r"(?m)^\s*//.*$", "", reply.text))


def test_the_interface_lists_every_request(client: Client) -> None:
    text = client.get("/docs").text
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        assert path.replace("{", "{") in text and all(one.upper() in text for one in methods)
    assert client.get("/page/../../etc/passwd").status == client.get("/page/x").status == 404


def test_choices_tell_slices_and_what_was_given(client: Client) -> None:
    found = client.get(f"{PLACE}/choices").json()
    assert [one["name"] for one in found["sources"][:2]] == ["test", "train"]
    assert found["sources"][0]["volumes"] == [["a", [4, 5, 6]], ["b", [0, 1]]]
    assert found["reconstructions"] == ["zero-filled", "zero-filled-weighted"]
    assert found["policies"] == ["center-out", "random", "oracle"]
    assert (found["n_initial"], found["n_steps"], found["fixed"]) == (2, 2, "center-out")
    assert found["session_note"] is None


def test_an_acquisition_is_that_of_the_simulator(client: Client, backend: PageBackend) -> None:
    html = client.post(f"{PLACE}/acquisitions", {**ASKED, "own": [0, 15]}).json()["html"]
    slices = backend.sources[0].slices
    simulator = Simulator(slices.batch(torch.tensor([3])), ZeroFilled())
    acquisition = InteractiveAcquisition(simulator, Plan(4, 5))
    sizes = ((N_ROWS, N_COLS), Plan(4, 5))
    for name in ("center-out", "oracle"):
        columns = acquisition.run(resolve(name, *sizes)[0]).columns
        assert f'"columns":{list(columns)}'.replace(" ", "") in html
    assert '"columns":[0,15]}' in html and "<b>you</b>" in html
    told = client.post(f"{PLACE}/verdicts", {**ASKED, "own": [0, 15]}).json()
    assert [one["name"] for one in told["turns"]] == ["you", "center-out", "oracle"]
    assert told["turns"][0]["column"] == 15 and told["n_left"] == 16 - 4 - 1


def test_one_more_column_of_ones_own_runs_no_policy_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**ASKED, "slice": 4}
    client.post(f"{PLACE}/acquisitions", asked)
    monkeypatch.setattr(InteractiveAcquisition, "run", lambda *_: pytest.fail("it ran again"))
    assert client.post(f"{PLACE}/acquisitions", {**asked, "own": [0]}).status == 200


def test_acquisitions_are_forgotten_when_they_take_too_much(
    client: Client, backend: PageBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_pixels = 6 * N_ROWS * N_COLS
    monkeypatch.setattr(backend_module, "_MOST_CACHED", 3 * n_pixels)
    for number in range(4):
        assert client.post(f"{PLACE}/acquisitions", {**ASKED, "slice": number}).status == 200
    kept = [(one.slice, *one.policies) for one in backend._cache]
    assert kept == [(2, "oracle"), (3, "center-out"), (3, "oracle")]


def test_k_space_of_coils_is_acquired_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    coils = draw.normal(size=(1, 3, N_ROWS, N_COLS, 2)).astype(np.float32)
    with StoreWriter(tmp_path / "coils", {}, kind=KSPACE) as writer:
        writer.append("test", "a", coils.view(np.complex64)[..., 0])
        writer.finish()
    backend = make_backend(tmp_path / "coils")
    asked = {**ASKED, "slice": 0, "n_initial": 8, "own": (0,), "policies": ("center-out",)}
    for name in ("zero-filled", "zero-filled-weighted"):
        found = backend.acquire(PageState(**{**asked, "reconstruction": name}), Event())
        assert len(found.policies) == 2 and found.target.shape == (N_ROWS, N_COLS)


BAD = {
    "no slice": {"slice": 5},
    "below": {"slice": -1},
    "nowhere": {"source": "../test"},
    "no policy": {"policies": []},
    "twice": {"policies": ["random", "random"]},
    "unknown policy": {"policies": ["/etc/passwd"]},
    "module": {"policies": ["os:system"]},
    "reconstruction": {"reconstruction": "sense"},
    "many steps": {"n_steps": 10**9},
    "no start": {"n_initial": 0},
    "wide": {"n_initial": 17},
    "unknown key": {"path": "/etc/passwd"},
    "text for a number": {"slice": "3"},
    "own": {"own": [7]},
    "own too long": {"own": [0, 1, 2, 3, 4, 5]},
    "own huge": {"own": [2**70]},
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("path", ["acquisitions", "verdicts"])
def test_what_cannot_be_shown_is_told_in_a_sentence(client: Client, path: str, name: str) -> None:
    found = client.post(f"{PLACE}/{path}", {**ASKED, "own": [0], **BAD[name]})
    assert found.status == 400 and found.json()["error"]
    assert client.post(f"{PLACE}/{path}", []).status == 422


def test_what_nobody_waits_for_ends_before_its_next_step(
    backend: PageBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, n_steps = Event(), 0
    usual = InteractiveAcquisition._chosen

    def chosen(*given: Any) -> Any:
        nonlocal n_steps
        n_steps += 1
        gone.set()
        return usual(*given)

    monkeypatch.setattr(InteractiveAcquisition, "_chosen", chosen)
    given = {**ASKED, "policies": ("oracle",), "n_initial": 5, "own": ()}
    with pytest.raises(DisconnectedError):
        backend.acquire(PageState(**given), gone)
    assert n_steps == 1


def test_a_client_that_leaves_is_noticed(
    client: Client, backend: PageBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "_CHECK_S", 0.01)
    seen: list[bool] = []

    def acquired(_: PageState, gone: Event) -> None:
        seen.append(gone.wait(timeout=600))
        raise DisconnectedError("nobody waits")

    monkeypatch.setattr(backend, "acquire", acquired)
    body = json.dumps(ASKED).encode()
    leaving = requested(client.app, "POST", f"{PLACE}/acquisitions", body, leaves=True)
    assert client.runner.run(leaving).status == 400 and seen == [True]


def test_values_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    store = write_store(tmp_path)
    backend = make_backend(store)
    file = next(store.glob("*test*.npy"))
    images = np.load(file, mmap_mode="r+")
    images[3, 2, 2] = np.nan
    images.flush()
    given = {**ASKED, "policies": ("center-out",), "own": (0,)}
    for answer in (backend.acquire, backend.compare):
        with pytest.raises(DataError, match="NaN or infinite"):
            answer(PageState(**given), Event())


def test_requests_that_pile_up_are_refused(
    client: Client, backend: PageBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(backend_module._N_WAITING):
        backend._waiting.acquire()
    assert client.post(f"{PLACE}/acquisitions", ASKED).status == 429
    backend._waiting.release(backend_module._N_WAITING)
    assert client.post(f"{PLACE}/acquisitions", ASKED).status == 200


def test_what_the_page_cannot_offer_is_refused_at_the_start() -> None:
    for given in (("fixed",), ("nowhere",), ("x=knee-base-greedy", "x=knee-base-fixed")):
        with pytest.raises(ConfigError):
            make_backend(policy=given)
    named = make_backend(policy=("knee-base-greedy", "knee-base-fixed"))
    told = named.choices()
    assert told["policies"][:2] == ["knee-base-greedy", "knee-base-fixed"] and not told["sources"]
    assert (told["n_initial"], told["n_steps"], told["fixed"]) == (16, 16, "knee-base-fixed")
    assert named.size == (128, 128)


def test_the_page_notes_that_sessions_use_a_network_for_protocol_paper() -> None:
    shown = make_backend(reconstructor=("knee-unet",), policy=("knee-long-fixed",))
    note = shown.choices()["session_note"]
    assert "sessions under protocol blind" in note and "the zoo has knee-general-unet, " in note


@pytest.mark.parametrize("first", ["own", "knee-base-fixed"])
def test_the_page_begins_with_the_budget_of_the_first_policy_that_tells(
    first: str, tmp_path: Path
) -> None:
    order = FixedOrder(n_cols=128, order=[2, 0, 1])
    save(tmp_path / "own.safetensors", order, extra={"n_initial": 8, "horizon": 4})
    own = f"own={tmp_path / 'own.safetensors'}"
    given = ("random", own, "knee-base-fixed") if first == "own" else ("knee-base-fixed", own)
    told = make_backend(policy=given).choices()
    assert (told["n_initial"], told["n_steps"]) == ((8, 4) if first == "own" else (16, 16))
