"""The service answers as a session does, by REST and by WebSocket, and refuses the rest."""

import asyncio
import base64
import errno
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from asgi_client import Client, Reply, requested, streamed
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from kscout.acquisition import Advisor, Scan, Session
from kscout.apps.serve.app import make_app
from kscout.apps.serve.guard import LOOPBACK, Guard
from kscout.apps.serve.sessions import Defaults, Limits, Sessions, advisor_maker
from kscout.core import Observation, Policy
from kscout.policies.conv import ConvPolicy
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

N_ROWS, N_COLS, N_COILS = 12, 16, 2
ASKED = {"n_rows": N_ROWS, "n_cols": N_COLS, "n_coils": N_COILS, "budget": 7, "n_initial": 3}
SCAN = Scan(n_rows=N_ROWS, n_cols=N_COLS, n_coils=N_COILS, budget=7, initial=3)
LIMITS = Limits(n_sessions=4, n_values=2000, n_bytes=20_000, idle_s=100.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def maker() -> Any:
    torch.manual_seed(0)
    unet = UNet(n_channels=2, n_pools=1, protocol="blind")
    policy = ConvPolicy(n_cols=N_COLS, n_rows=N_ROWS, n_channels=2, n_hidden=5)
    return advisor_maker(unet, lambda _: policy, device=torch.device("cpu"))


def sessions_of(folder: Path | None = None, clock: Any = None) -> Sessions:
    return Sessions(maker(), limits=LIMITS, folder=folder, now_s=clock or Clock())


def client_of(sessions: Sessions, token: str | None = None) -> Client:
    return Client(Guard(make_app(sessions), hosts=LOOPBACK, n_bytes=LIMITS.n_bytes, token=token))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(clock: Clock) -> Iterator[Client]:
    with client_of(sessions_of(clock=clock)) as client:
        yield client


def kspace() -> np.ndarray:
    draw = np.random.default_rng(0)
    parts = draw.normal(size=(2, N_COILS, N_ROWS, N_COLS)).astype(np.float32)
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def column_of(column: int) -> dict[str, Any]:
    data = np.ascontiguousarray(kspace()[:, :, column])
    return {"column": column, "data": base64.b64encode(data.tobytes()).decode()}


def opened(client: Client, **changes: Any) -> str:
    found = client.post("/sessions", {**ASKED, **changes})
    assert found.status == 201, found.body
    return found.json()["id"]


def expected() -> tuple[list[int], np.ndarray]:
    """Return the columns and the image of a session in Python."""
    with maker()(SCAN) as advisor:
        assert isinstance(advisor, Advisor)
        session = Session(advisor, SCAN)
        while columns := session.advise().columns:
            session.measure(columns, kspace()[:, :, list(columns)].transpose(2, 0, 1))
        return session.order, session.image().numpy()


def test_an_error_needs_no_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starlette._exception_handler.run_in_threadpool", pytest.fail)
    assert client.post("/sessions", {**ASKED, "budget": 0}).status == 400
    assert client.get("/sessions/nobody").status == 404
    assert client.get("/nowhere").status == 404 and client.get("/nowhere").json()["error"]
    assert client.delete("/health").status == 405


def test_a_client_that_leaves_before_an_error_ends_its_stream(client: Client) -> None:
    stream = streamed(client.app, "/sessions/nobody/stream", [], leaves=True)
    assert client.runner.run(stream) == ([], None)


def test_rest_takes_the_columns_of_a_session(client: Client) -> None:
    found = client.post("/sessions", ASKED).json()
    place = f"/sessions/{found['id']}"
    assert found["columns"] == [7, 8, 9]
    assert {client.get(f"{place}/image.{one}").status for one in ("png", "npy")} == {409}
    answer = client.post(f"{place}/columns", column_of(7)).json()
    assert (answer["next_column"], answer["next_columns"]) == (8, [8, 9])
    answer = client.post(f"{place}/columns", [column_of(8), column_of(9)]).json()
    order = [7, 8, 9]
    while not answer["done"]:
        assert answer["n_measured"] == len(order) and len(answer["scores"]) == N_COLS
        assert client.get(place).json()["next_column"] == answer["next_column"]
        order.append(answer["next_column"])
        answer = client.post(f"{place}/columns", column_of(order[-1])).json()
    assert answer["next_column"] is None and not answer["late"]
    columns, image = expected()
    assert order == columns == client.get(place).json()["order"]
    record = client.get(place).json()["record"]
    assert [one["source"] for one in record] == ["start"] + ["policy"] * 4 + ["end"]
    assert [column for one in record[1:] for column in one["columns"]] == order[3:]
    values = np.load(io.BytesIO(client.get(f"{place}/image.npy").body))
    assert values.dtype == np.float32 and np.array_equal(values, image)
    png = client.get(f"{place}/image.png")
    assert png.headers["content-type"] == "image/png"
    levels = np.asarray(Image.open(io.BytesIO(png.body)))
    assert np.abs(levels - np.clip(image / image.max(), 0, 1) * 255).max() <= 1
    told = client.get("/metrics").text
    assert 'kscout_decisions_total{source="policy"} 4' in told and "kscout_sessions 1" in told
    assert "kscout_columns_total 7" in told and 'seconds_bucket{le="+Inf"} 4' in told
    assert client.delete(place).status == 204 and client.get(place).status == 404
    assert client.get("/health").json()["n_sessions"] == 0


def test_a_stream_takes_the_same_columns(client: Client) -> None:
    columns = expected()[0]
    messages: list[str | bytes] = [json.dumps([column_of(column) for column in (9, 7, 8)])]
    messages += [json.dumps(column_of(column)) for column in columns[3:]]
    answers, _ = client.stream(f"/sessions/{opened(client)}/stream", messages)
    assert [answer["next_column"] for answer in answers] == [*columns[3:], None]


@pytest.mark.parametrize("garbage", ["{", b"\0", "[]", '{"column": 1e400, "data": ""}'])
def test_a_stream_with_garbage_is_told_why_and_closed(client: Client, garbage: str | bytes) -> None:
    answers, code = client.stream(f"/sessions/{opened(client)}/stream", [garbage, "{}"])
    assert len(answers) == 1 and answers[0]["error"] and code == 1008
    answers, code = client.stream("/sessions/nobody/stream", [])
    assert "no such session" in answers[0]["error"] and code == 1008


GOOD = column_of(0)
BAD = {
    "size": ("columns", {**GOOD, "data": GOOD["data"][:-8]}, 400),
    "base64": ("columns", {**GOOD, "data": "é" + GOOD["data"]}, 400),
    "not a number": ("columns", {**GOOD, "data": base64.b64encode(b"\xff" * 192).decode()}, 400),
    "unknown column": ("columns", {**GOOD, "column": N_COLS}, 400),
    "twice": ("columns", [GOOD, GOOD], 400),
    "none": ("columns", [], 400),
    "text for a number": ("columns", {**GOOD, "column": "0"}, 422),
    "unknown key": ("columns", {**GOOD, "path": "../x"}, 422),
    "half": ("columns", {"column": 0}, 422),
    "too large": ("columns", {**GOOD, "data": "A" * 30_000}, 413),
    "no budget": ("", {**ASKED, "budget": 99}, 400),
    "no rows": ("", {**ASKED, "n_rows": 0}, 400),
    "many values": ("", {**ASKED, "n_rows": 4096}, 429),
    "huge number": ("", {**ASKED, "seed": 10**400}, 400),
    "deadline": ("", {**ASKED, "deadline_s": -1.0}, 400),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_messages_are_told_in_a_sentence_and_change_nothing(client: Client, name: str) -> None:
    place, message, status = BAD[name]
    own = opened(client)
    found = client.post(f"/sessions/{own}/{place}" if place else "/sessions", message)
    assert found.status == status and found.json()["error"], found.body
    assert client.get(f"/sessions/{own}").json()["n_measured"] == 0
    assert "kscout_refused_total 1" in client.get("/metrics").text or status == 413


def test_a_message_that_is_not_called_json_is_told_which_header_is_missing(client: Client) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    found = client.request("POST", "/sessions", ASKED, **form)
    assert found.status == 422
    assert found.json()["error"].endswith("with the header Content-Type: application/json")
    assert "Content-Type" not in client.post("/sessions", {}).text


def test_other_hosts_and_other_pages_are_refused(client: Client) -> None:
    assert client.get("/health", origin="http://127.0.0.1:9").status == 200
    proxied = {"host": "localhost", "origin": "https://localhost"}
    assert client.get("/health", **proxied).status == 200
    for headers in (
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:9"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:5"},
        {"origin": "http://127.0.0.1:99999"},
    ):
        assert client.get("/health", **headers).status == 403
    place = f"/sessions/{opened(client)}/stream"
    answers, code = client.stream(place, [json.dumps(column_of(7))], origin="http://evil.example")
    assert not answers and code == 1008


def test_a_request_that_is_not_done_when_the_service_ends_is_told(client: Client) -> None:
    async def ended() -> Reply:
        asked = requested(client.app, "POST", "/sessions", is_whole=False)
        task = asyncio.ensure_future(asked)
        await asyncio.sleep(0)
        task.cancel()
        return await task

    found = client.runner.run(ended())
    assert found.status == 503 and "the service is ending" in found.json()["error"]


def test_sessions_are_limited_in_number_and_idle_time(client: Client, clock: Clock) -> None:
    names = [opened(client) for _ in range(LIMITS.n_sessions)]
    assert client.post("/sessions", ASKED).status == 429
    clock.now_s = 99.0
    client.get(f"/sessions/{names[1]}")
    clock.now_s = 150.0
    assert client.get(f"/sessions/{names[0]}").status == 404
    assert client.get(f"/sessions/{names[1]}").status == 200
    opened(client)


def test_idle_sessions_end_while_no_request_arrives() -> None:
    sessions = Sessions(maker(), limits=replace(LIMITS, idle_s=0.01))
    with client_of(sessions) as client:
        sessions.open(SCAN)

        async def all_ended() -> None:
            while len(sessions):
                await asyncio.sleep(0.01)

        client.runner.run(asyncio.wait_for(all_ended(), timeout=60))


def test_a_service_started_again_goes_on_with_its_sessions(tmp_path: Path) -> None:
    with client_of(sessions_of(tmp_path)) as client:
        kept, closed = opened(client), opened(client)
        client.post(f"/sessions/{kept}/columns", [column_of(c) for c in (7, 8, 9)])
        before = client.get(f"/sessions/{kept}").json()
        client.delete(f"/sessions/{closed}")
    (tmp_path / f"{'0' * 32}.npz").write_bytes(b"damaged")
    (tmp_path / "notes.npz").write_bytes(b"of somebody else")
    with client_of(sessions_of(tmp_path)) as client:
        assert client.get("/health").json()["n_sessions"] == 1
        assert client.get(f"/sessions/{kept}").json() == before
        assert client.get(f"/sessions/{closed}").status == 404
    assert (tmp_path / "notes.npz").exists()


def test_a_full_disk_is_told_and_what_was_sent_can_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    start = [column_of(c) for c in (7, 8, 9)]
    with client_of(sessions_of(tmp_path)) as client:
        kept = opened(client)
        with monkeypatch.context() as patched:
            patched.setattr("kscout.acquisition.scan.np.savez", full)
            told = client.post(f"/sessions/{kept}/columns", start)
            assert told.status == 507 and "No space left" in told.json()["error"]
            assert client.post("/sessions", ASKED).status == 507
        assert client.get("/health").json()["n_sessions"] == 1
        assert client.post(f"/sessions/{kept}/columns", start).json()["n_measured"] == 3


def test_kept_sessions_that_find_no_room_are_told_and_stay_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scan = Scan(n_rows=N_ROWS, n_cols=N_COLS, n_coils=N_COILS, budget=7, initial=3)
    cut_off = sessions_of(tmp_path)
    names = sorted(cut_off.open(scan) for _ in range(3))
    sessions = Sessions(maker(), limits=Limits(n_sessions=2), folder=tmp_path)
    assert sessions.restore() == 2 and list(sessions._handles) == names[:2]
    assert f"skipped session {names[2]}: 2 sessions are open" in caplog.text
    sessions.shut()
    cut_off.shut()
    assert sorted(file.stem for file in tmp_path.iterdir()) == names


@final
class Slow(Policy):
    """Scores columns when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        assert self.released.wait(60)
        return torch.zeros(seen.mask.shape)


def test_a_late_policy_is_answered_for_and_what_was_cut_off_goes_on(tmp_path: Path) -> None:
    """The first service is never told to end: what it kept before is all there is."""
    policy, defaults = Slow(), Defaults(deadline_s=0.01, fallback=lambda _: (8, 3, 12))
    make = advisor_maker(ZeroFilled(), lambda _: policy, device=torch.device("cpu"))
    services = [Sessions(make, limits=LIMITS, defaults=defaults, folder=tmp_path) for _ in range(2)]
    cut = client_of(services[0])
    with cut.runner:
        cut.runner.run(cut._live("startup"))
        name = opened(cut)
        answer = cut.post(f"/sessions/{name}/columns", [column_of(c) for c in (7, 8, 9)]).json()
        assert (answer["next_column"], answer["late"], answer["source"]) == (3, True, "fallback")
        assert answer["scores"] is None
        assert 'kscout_decisions_total{source="fallback"} 1' in cut.get("/metrics").text
        with client_of(services[1]) as client:
            again = client.get(f"/sessions/{name}").json()
            record = [{"n_measured": 3, "columns": [3], "source": "fallback"}]
            assert again == {**answer, "order": [7, 8, 9], "record": record}
            policy.released.set()
            answer = client.post(f"/sessions/{name}/columns", column_of(3)).json()
            assert answer["n_measured"] == 4
        cut.runner.run(cut._live("shutdown"))
    record = json.loads(np.load(tmp_path / f"{name}.npz")["session"].tobytes())["record"]
    assert record[0] == {"n_measured": 3, "columns": [3], "source": "fallback"}


def test_the_interface_describes_itself(client: Client) -> None:
    told = client.get("/openapi.json").json()
    assert {"/health", "/sessions", "/sessions/{name}/columns", "/metrics"} <= set(told["paths"])
    assert told["components"]["schemas"]["Fault"]["required"] == ["error"]
    faults = [
        {status for status in about["responses"] if status[0] == "4"}
        for methods in told["paths"].values()
        for about in methods.values()
    ]
    assert all(one == {"4XX"} for one in faults), "as what is really answered"
