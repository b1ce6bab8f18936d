"""Connections are limited in number, and in the time in which a request has to arrive."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from asgi_client import streamed
from mrd_client import listening
from test_app import ASKED, client_of, maker, sessions_of
from test_mrd_stream import HEAD
from uvicorn.server import ServerState

from kscout.apps.serve.guard import BoundedProtocol, log_once_per_minute, reserve_handles
from kscout.apps.serve.mrd_messages import Id, text_message
from kscout.apps.serve.sessions import Limits, Sessions
from kscout.errors import ConfigError

QUICK = Limits(n_sessions=1, receive_s=0.2)
PATIENT = Limits(n_sessions=1, receive_s=0.5)
"""For what must stay open, also on a busy machine."""
LONG_S = 2.5 * PATIENT.receive_s
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read a body, then send what the path asks for."""
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(LONG_S)
    body = bytes(2**24) if scope["path"] == "/large" else b"here"
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def exchanged(*sent: bytes, limits: Limits = QUICK) -> list[bytes]:
    """Send a text on each of several connections; return what came until the server closed them."""
    config = uvicorn.Config(app, lifespan="off", log_level="error")
    config.load()
    given = {"config": config, "server_state": ServerState(), "app_state": {}, "limits": limits}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(BoundedProtocol, **given), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with server, asyncio.timeout(20):
        found = [await asyncio.open_connection(*address) for _ in sent]
        for (_, writer), raw in zip(found, sent, strict=True):
            writer.write(raw)
        read = [await reader.read(-1) for reader, _ in found]
        for _, writer in found:
            writer.close()
    return read


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: ",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
def test_a_request_that_does_not_arrive_is_closed(sent: bytes) -> None:
    assert asyncio.run(exchanged(sent)) == [b""]


def test_a_response_that_takes_long_is_sent() -> None:
    request = b"GET /slow HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    (read,) = asyncio.run(exchanged(request, limits=PATIENT))
    assert read.startswith(b"HTTP/1.1 200") and read.endswith(b"here")


def test_a_connection_stays_open_between_requests() -> None:
    (read,) = asyncio.run(exchanged(GET + GET, limits=PATIENT))
    assert read.count(b"HTTP/1.1 200") == 2


def test_surplus_connections_are_closed_with_an_error() -> None:
    limits = Limits(n_sessions=1, receive_s=0.5)
    read = asyncio.run(exchanged(*[b""] * (limits.n_connections + 2), limits=limits))
    full = [one for one in read if b"503" in one and b"too many connections are open" in one]
    assert len(full) == 2 and read.count(b"") == limits.n_connections


@contextmanager
def connected(sessions: Sessions, sent: bytes) -> Iterator[socket.socket]:
    with listening(sessions) as address, socket.create_connection(address, timeout=20) as stream:
        stream.sendall(sent)
        yield stream


CONFIGURED = text_message(Id.CONFIG_TEXT, '{"budget": 7, "n_initial": 3}')


@pytest.mark.parametrize("sent", [b"", b"\x02", CONFIGURED, CONFIGURED + HEAD + b"\xf0"])
def test_a_stream_that_does_not_send_a_whole_message_is_closed(sent: bytes) -> None:
    with connected(Sessions(maker(), limits=QUICK), sent) as stream:
        read = b"".join(iter(lambda: stream.recv(2**16), b""))
    assert b"the client was silent or slow for too long" in read


def test_a_stream_may_pause_between_messages() -> None:
    with connected(Sessions(maker(), limits=PATIENT), CONFIGURED + HEAD) as stream:
        assert b"columns" in stream.recv(2**16)
        stream.settimeout(LONG_S)
        with pytest.raises(TimeoutError):
            stream.recv(1)


def test_a_websocket_without_messages_is_closed() -> None:
    sessions = Sessions(maker(), limits=Limits(idle_s=0.05))
    with client_of(sessions) as client:
        name = client.post("/sessions", ASKED).json()["id"]
        stream = streamed(client.app, f"/sessions/{name}/stream", [], stays=True)
        answers, code = client.runner.run(asyncio.wait_for(stream, timeout=20))
    assert code == 1008 and answers == [{"error": "no message came for too long"}]


def test_missing_file_handles_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 5.0
    handle = log_once_per_minute(lambda: now_s)
    with asyncio.Runner() as runner, caplog.at_level(logging.WARNING):
        loop = runner.get_loop()
        loop.set_exception_handler(handle)
        for number in range(200):
            fault = OSError(errno.ENFILE if number % 2 else errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "accept() failed", "exception": fault})
        assert [one.getMessage()[:26] for one in caplog.records] == ["no file handles are free; "]
        now_s += 61
        loop.call_exception_handler({"message": "accept() failed", "exception": fault})
        loop.call_exception_handler({"message": "another fault"})
    assert [one.getMessage() for one in caplog.records][2:] == ["another fault"]


def test_handles_are_reserved_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: changed.append(pair))
    for pair, expected in (((1024, 4096), []), ((256, 4096), [(492, 4096)])):
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=pair: pair)
        reserve_handles(Limits(n_sessions=100))
        assert changed == expected
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(ConfigError, match="may open 256 files and needs 492 for 100 sessions"):
        reserve_handles(Limits(n_sessions=100))


def test_a_request_without_file_handles_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Sessions, "open", full)
    with client_of(sessions_of()) as client:
        answer = client.post("/sessions", ASKED)
    assert answer.status == 503 and "no file handles are free" in answer.json()["error"]
