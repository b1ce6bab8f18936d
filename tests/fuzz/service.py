"""Clients that attack a service from a thread of its process, which ends it afterwards."""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import typer

from kscout.apps.serve.mrd_messages import ACQUISITION_HEAD, Id, acquisition_message, text_message
from kscout.apps.serve.sessions import Limits

SIZE = 64
RECEIVE_S = 0.5
"""In place of 30 s, within which a message has to arrive."""
MOST_LOGGED = 4000
_WAIT_S = 50.0
_M_ARENA_MAX = -8
_SESSION = {"n_rows": SIZE, "n_cols": SIZE, "budget": 9, "n_initial": 3}
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


def attacked(attack: Callable[[Places], None] | None = None) -> None:
    """Let the service of this process be attacked once it is ready, and then end."""

    def run(places: Places) -> None:
        try:
            if attack is not None:
                attack(places)
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


def forged(places: Places) -> None:
    """Claim to be this machine, or to be called by another name."""
    claims = ("x-forwarded-for", "x-real-ip", "forwarded", "x-forwarded-host", "client-ip")
    values = dict.fromkeys(claims, "127.0.0.1")
    for wrong in ({"host": "evil.example"}, {"host": ""}, {"origin": "http://evil.example"}):
        sent = request(places, "/sessions", b"{}", **{**values, **wrong})
        assert exchanged(places, sent)[9:12] in (b"400", b"403"), wrong


def _line(n_coils: int, **fields: int) -> bytes:
    head = np.zeros((), dtype=ACQUISITION_HEAD)
    head["idx"]["kspace_encode_step_1"] = 31
    for name, value in fields.items():
        head[name] = value
    return acquisition_message(head, np.zeros((n_coils, SIZE), np.complex64))


def _declared(**fields: int) -> bytes:
    head = np.zeros((), dtype=ACQUISITION_HEAD)
    for name, value in fields.items():
        head[name] = value
    return struct.pack("<H", Id.ACQUISITION) + head.tobytes()


def declared(places: Places) -> None:
    """Declare, or send, far more than an image has."""
    streams = [
        [_line(2), *[_line(60_000)] * 20],
        [_line(60_000, flags=1 << 18)] * 20,
        [_declared(number_of_samples=65535, active_channels=65535), bytes(2**26)],
        [_declared(number_of_samples=65535, trajectory_dimensions=65535), bytes(2**26)],
        [struct.pack("<HI", Id.TEXT, 2**32 - 1), bytes(2**26)],
        [struct.pack("<H", Id.WAVEFORM) + b"\xff" * 40, bytes(2**26)],
    ]
    upgrade = request(places, f"/sessions/{opened(places)}/stream", **_UPGRADE)
    huge = [request(places, "/sessions", content_length=str(10**n)) for n in (9, 18, 300)]
    chunks = request(places, "/sessions", transfer_encoding="chunked")
    requests = [
        [upgrade, b"\x82\xff", struct.pack(">Q", 2**62) + bytes(4), bytes(2**26)],
        [upgrade, *[b"\x02\xff" + struct.pack(">Q", 2**24) + bytes(4 + 2**24)] * 4],
        *([one.replace(b"GET", b"POST"), bytes(2**26)] for one in huge),
        [chunks.replace(b"GET", b"POST"), b"ffffffffffffffff\r\n", bytes(2**26)],
        [request(places, "/" + "a" * 2**24)],
        [request(places, "/", x="a" * 2**24)],
    ]
    before = _resident()
    for sent in streams:
        exchanged(places, _CONFIG, _HEADER, *sent, to="mrd_port", ends=True)
    for sent in requests:
        exchanged(places, *sent, ends=True)
    assert _resident() < before + 2**28, "memory of a stream is not released"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
