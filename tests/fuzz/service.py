"""Clients that attack a service from a thread of its process, which ends it afterwards."""

import base64
import ctypes
import gc
import json
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import typer

from fuzz.damage import BYTES
from kscout.acquisition import Session
from kscout.apps.serve.mrd_messages import ACQUISITION_HEAD, Id, acquisition_message, text_message
from kscout.apps.serve.sessions import Limits

SERVE = ["serve", "--reconstructor", "zero-filled", "--policy", "center-out", "--device", "cpu"]
SIZE = 64
RECEIVE_S = 0.5
"""In place of 30 s, within which a message has to arrive."""
TOKEN = "0123456789abcdef"
MOST_LOGGED = 4000
_WAIT_S = 50.0
_M_ARENA_MAX = -8
_SESSION = {"n_rows": SIZE, "n_cols": SIZE, "budget": 9, "n_initial": 3}
_DATA = base64.b64encode(bytes(8 * SIZE)).decode()
_CONFIG = text_message(Id.CONFIG_TEXT, '{"budget": 9, "n_initial": 3}')
_SIZES = f"<matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize>"
_HEADER = text_message(
    Id.HEADER,
    f"<ismrmrdHeader><encoding><encodedSpace>{_SIZES}</encodedSpace><reconSpace>{_SIZES}"
    "</reconSpace><trajectory>cartesian</trajectory></encoding></ismrmrdHeader>",
)
_UPGRADE = {
    **{"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"},
    "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}

Places = dict[str, Any]
"""What a service prints when it is ready."""
Attack = Callable[[random.Random, Places], None]


def attacked(name: str, seed: int) -> None:
    """Let the service of this process be attacked once it is ready, and then end."""

    def run(places: Places) -> None:
        try:
            if name:
                ATTACKS[name][2](random.Random(seed), places)
                assert exchanged(places, request(places, "/health"))[:12] == b"HTTP/1.1 200"
            assert os.fstat(1).st_size < MOST_LOGGED, "the log is long"
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    def begin(line: str) -> None:
        threading.Thread(target=run, args=(json.loads(line),)).start()

    typer.echo = begin  # type: ignore[assignment]
    Limits.__init__.__defaults__ = (*(Limits.__init__.__defaults__ or ())[:-1], RECEIVE_S)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What a thread reserves counts as allocated.
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def request(places: Places, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """Return a request that ends its connection, with the token if there is one."""
    lines = {"host": "127.0.0.1", "connection": "close"}
    lines |= {"authorization": f"Bearer {places['token']}"} if "token" in places else {}
    if body is not None:
        lines |= {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1"]
    head += [f"{name}: {value}" for name, value in lines.items()]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + (body or b"")


def opened(places: Places) -> str:
    """Open a session and return its name."""
    answer = exchanged(places, request(places, "/sessions", json.dumps(_SESSION).encode()))
    return json.loads(answer.partition(b"\r\n\r\n")[2])["id"]


def exchanged(places: Places, *sent: bytes, to: str = "port", ends: bool = False) -> bytes:
    """Send, end the stream or not, and return what comes until the service closes it."""
    with socket.create_connection(("127.0.0.1", places[to]), _WAIT_S) as one:
        received = b""
        with suppress(ConnectionError):
            for part in sent:
                one.sendall(part)
            if ends:
                one.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while part := one.recv(2**16):
                received += part
        return received


def without_token(draw: random.Random, places: Places) -> None:
    """Ask for everything with no token, half of it, or another one."""
    token = places.pop("token", TOKEN)
    assert len(token) >= 16
    wrong = draw.choice(
        ({}, {"authorization": f"Bearer {token[:-1]}"}, {"cookie": "kscout_token=x"})
    )
    name = "0" * 32
    page = request(places, "/page/data/choices", **wrong)
    for sent in (
        *(request(places, path, **wrong) for path in ("/", "/health", "/metrics", "/openapi.json")),
        *(request(places, "/sessions", b"{}", **wrong), page),
        request(places, f"/sessions/{name}/stream", **wrong, **_UPGRADE),
    ):
        assert exchanged(places, sent)[9:12] in (b"401", b"403"), sent
    begin = text_message(Id.CONFIG_TEXT, json.dumps(draw.choice(({}, {"token": token[:-1]}))))
    assert b"columns" not in exchanged(places, begin + _HEADER, to="mrd_port")
    places["token"] = token


def forged(draw: random.Random, places: Places) -> None:
    """Claim to be this machine, or to be called by another name."""
    claims = ("x-forwarded-for", "x-real-ip", "forwarded", "x-forwarded-host", "client-ip")
    values = {claim: draw.choice(("127.0.0.1", "::1", "localhost")) for claim in claims}
    for wrong in ({"host": "evil.example"}, {"host": ""}, {"origin": "http://evil.example"}):
        sent = request(places, "/sessions", b"{}", **{**values, **wrong})
        assert exchanged(places, sent)[9:12] in (b"400", b"403"), wrong


def slow(draw: random.Random, places: Places) -> None:
    """Begin messages on many connections, and end none."""
    whole = request(places, "/sessions", json.dumps(_SESSION).encode())
    upgrade = request(places, f"/sessions/{opened(places)}/stream", **_UPGRADE)
    halves = [("port", whole[: draw.randrange(len(whole))]) for _ in range(40)]
    halves += [("port", upgrade[: draw.randrange(len(upgrade))]) for _ in range(10)]
    stream = _CONFIG + _HEADER
    halves += [("mrd_port", stream[: draw.randrange(len(stream))]) for _ in range(40)]
    held = [socket.create_connection(("127.0.0.1", places[to]), _WAIT_S) for to, _ in halves]
    for one, (_, raw) in zip(held, halves, strict=True):
        one.sendall(raw)
    for one in held:
        with suppress(ConnectionError):
            while one.recv(2**16):
                pass
        one.close()


def surplus(draw: random.Random, places: Places) -> None:
    """Open more connections than the service has room for, and leave them silent."""
    held = [socket.create_connection(("127.0.0.1", places["port"]), _WAIT_S) for _ in range(90)]
    held += [socket.create_connection(("127.0.0.1", places["mrd_port"]), _WAIT_S) for _ in range(9)]
    assert sum(b"503" in one.recv(2**16) for one in held[:90]) >= 20
    for one in held:
        one.close()


def without_handles(draw: random.Random, places: Places) -> None:
    """Connect while no file can be opened."""
    held = [socket.socket() for _ in range(30)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(one.fileno() for one in held)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, limits[1]))
    for one in held:
        one.connect(("127.0.0.1", places[draw.choice(("port", "mrd_port"))]))
    time.sleep(2 * RECEIVE_S)
    for one in held:
        one.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    # A listener that could not accept tries again after a second.
    time.sleep(1.5)


def idle(draw: random.Random, places: Places) -> None:
    """Open sessions, also through streams that stay open, and send nothing more."""
    for _ in range(draw.randrange(1, 5)):
        opened(places)
    upgrade = request(places, f"/sessions/{opened(places)}/stream", **_UPGRADE)
    stream = b"".join([_CONFIG, _HEADER, *map(_line, (31, 32, 33))])
    # The end of a stream is like a request: without one, too, sessions have to be closed.
    for to, raw in (("port", upgrade), ("mrd_port", stream)):
        if draw.random() < 0.3:
            threading.Thread(target=exchanged, args=(places, raw), kwargs={"to": to}).start()
    time.sleep(0.3)
    assert _n_sessions()
    end = time.monotonic() + _WAIT_S / 2
    while _n_sessions() and time.monotonic() < end:
        time.sleep(0.1)
    assert not _n_sessions(), "idle sessions stay in memory"


def _n_sessions() -> int:
    gc.collect()
    return sum(isinstance(one, Session) for one in gc.get_objects())


def _line(column: int, n_coils: int = 2, **fields: int) -> bytes:
    head = np.zeros((), dtype=ACQUISITION_HEAD)
    head["idx"]["kspace_encode_step_1"] = column
    for name, value in fields.items():
        head[name] = value
    return acquisition_message(head, np.zeros((n_coils, SIZE), np.complex64))


def _declared(**fields: int) -> bytes:
    head = np.zeros((), dtype=ACQUISITION_HEAD)
    for name, value in fields.items():
        head[name] = value
    return struct.pack("<H", Id.ACQUISITION) + head.tobytes()


def declared(draw: random.Random, places: Places) -> None:
    """Declare, or send, far more than an image has."""
    name = opened(places)
    coils = [_line(draw.randrange(31, 34), 60_000) for _ in range(2)]
    streams = [
        [_line(31), *coils * 10],
        [*coils * 10],
        [_line(0, 60_000, flags=1 << 18)] * 20,
        [_declared(number_of_samples=65535, active_channels=65535), bytes(2**26)],
        [_declared(number_of_samples=65535, trajectory_dimensions=65535), bytes(2**26)],
        [struct.pack("<HI", Id.TEXT, 2**32 - 1), bytes(2**26)],
        [struct.pack("<H", Id.WAVEFORM) + b"\xff" * 40, bytes(2**26)],
    ]
    upgrade = request(places, f"/sessions/{name}/stream", **_UPGRADE)
    huge = request(places, "/sessions", content_length=str(10 ** draw.choice((9, 18, 300))))
    chunks = request(places, "/sessions", transfer_encoding="chunked").replace(b"GET", b"POST")
    requests = [
        [upgrade, b"\x82\xff", struct.pack(">Q", 2**62) + bytes(4), bytes(2**26)],
        [upgrade, *[b"\x02\xff" + struct.pack(">Q", 2**24) + bytes(4 + 2**24)] * 4],
        [huge.replace(b"GET", b"POST"), bytes(2**26)],
        [chunks, b"ffffffffffffffff\r\n", bytes(2**26)],
        [request(places, "/" + "a" * 2**24)],
        [request(places, "/", x="a" * 2**24)],
    ]
    is_mrd = draw.random() < 0.5
    sent = [_CONFIG, _HEADER, *draw.choice(streams)] if is_mrd else draw.choice(requests)
    before = _resident()
    exchanged(places, *sent, to="mrd_port" if is_mrd else "port", ends=True)
    assert _resident() < before + 2**28, "memory of a stream is not released"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def garbage(draw: random.Random, places: Places) -> None:
    """Send damaged requests, frames and streams."""
    column = json.dumps({"column": 31, "data": _DATA}).encode()
    for _ in range(20):
        name = opened(places) if draw.random() < 0.2 else "0" * 32
        frame = b"\x81" + bytes([128 | 126]) + struct.pack(">H", len(column)) + bytes(4) + column
        valid = {
            "port": request(places, f"/sessions/{name}/columns", column),
            "mrd_port": b"".join([_CONFIG, _HEADER, *map(_line, (31, 32, 33))]),
        }
        to = draw.choice(list(valid))
        damaged = draw.choice(BYTES)(draw, valid[to])
        if draw.random() < 0.2:
            to, upgrade = "port", request(places, f"/sessions/{name}/stream", **_UPGRADE)
            damaged = upgrade + draw.choice(BYTES)(draw, frame)
        exchanged(places, damaged, to=to, ends=True)


ATTACKS: dict[str, tuple[list[str], tuple[tuple[str, str], ...], Attack]] = {
    "all addresses": (["--host", "0.0.0.0"], (), without_token),
    "behind a proxy": (["--behind-proxy"], (), without_token),
    "own token": (["--token", TOKEN], (), without_token),
    "forged": ([], (("FORWARDED_ALLOW_IPS", "*"),), forged),
    "forged, behind a proxy": (["--behind-proxy"], (("FORWARDED_ALLOW_IPS", "*"),), forged),
    "slow": ([], (), slow),
    "surplus": (["--most-sessions", "2"], (), surplus),
    "without handles": ([], (), without_handles),
    "idle": (["--idle-s", "1"], (), idle),
    "declared": ([], (), declared),
    "garbage": ([], (), garbage),
}
"""Options and environment of the service, and what its client does."""
