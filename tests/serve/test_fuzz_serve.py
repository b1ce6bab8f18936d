"""2,500 messages drawn by seed: every one is answered or refused, and the service lives."""

import asyncio
import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from asgi_client import requested, streamed
from page_backend import make_backend, write_store
from test_app import ASKED, LIMITS, column_of, expected, sessions_of
from test_page import ASKED as SHOWN

from kscout.apps.serve.app import make_app
from kscout.apps.serve.guard import LOOPBACK, Guard

N_MESSAGES = 2500
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 15, 16, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), 1e400),
    *("", "0", "../../etc/passwd", "\0", "\u202e", "%00", "A" * 5000, "=" * 8, "\ud800"),
    *([], {}, [[]], [{}], [None], {"column": 0}, [[[[[[]]]]]]),
]
PATHS = [
    "/",
    "/health",
    "/sessions",
    "/metrics",
    "/sessions/",
    "/openapi.json",
    "/docs",
    *[f"/page/data/{one}" for one in ("choices", "acquisitions", "verdicts")],
    "/..",
    "//",
    "/%00",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"]


def odd_message(draw: random.Random) -> Any:
    """Return a message with something in it that should not be there."""
    base: dict[str, Any] = dict(draw.choice([ASKED, SHOWN, column_of(draw.randrange(16))]))
    for _ in range(draw.randrange(3)):
        base[draw.choice([*base, "path", "n_coils", "fallback", "seed"])] = draw.choice(ODD)
    if "data" in base and draw.random() < 0.3:
        raw = draw.randbytes(draw.choice([0, 1, 191, 192, 193]))
        base["data"] = base64.b64encode(raw).decode()
    if draw.random() < 0.2:
        base.pop(draw.choice(list(base)))
    return draw.choice([base, [base], [base, base], draw.choice(ODD)])


def odd_bytes(draw: random.Random) -> bytes:
    """Return a message, perhaps cut, with a bit flipped, deep, long or no text at all."""
    whole = json.dumps(odd_message(draw)).encode()
    at = draw.randrange(len(whole))
    changes = [
        *([whole] * 4, [whole[:at]], [draw.randbytes(at % 50)], [b"[" * 5000]),
        [whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :]],
        [b" " * (LIMITS.n_bytes + 1)],
    ]
    return draw.choice(draw.choice(changes))


def odd_headers(draw: random.Random) -> dict[str, str]:
    if draw.random() < 0.8:
        return {}
    name = draw.choice(["host", "origin", "content-length", "content-type", "x-forwarded-host"])
    values = ["", "evil", "0", "1000000000", "-1", "1e9", "http://[", "text/plain", "\xff"]
    return {name: draw.choice(values)}


async def fuzz(app: Any, seed: int) -> dict[int, int]:
    draw, seen, names = random.Random(seed), dict[int, int](), ["nobody", "..", "0" * 32]
    for number in range(N_MESSAGES):
        own = draw.choice(names[-4:])
        if number % 10 == 0:
            sent = [draw.choice([odd_bytes(draw), odd_bytes(draw).decode("latin-1")])]
            answers, code = await streamed(app, f"/sessions/{own}/stream", sent, odd_headers(draw))
            assert code in (None, 1008) and len(answers) <= 1
            continue
        places = [*PATHS, *[f"/sessions/{own}{end}" for end in ("", "/columns", "/image.png")] * 3]
        method = draw.choice(["POST"] * 8 + METHODS)
        path = "/sessions" if draw.random() < 0.2 else draw.choice(places)
        body = odd_bytes(draw)
        if number % 50 == 1:
            method, path, body = "POST", "/sessions", json.dumps(ASKED).encode()
        reply = await requested(app, method, path, body, odd_headers(draw))
        seen[reply.status] = seen.get(reply.status, 0) + 1
        assert 200 <= reply.status < 500, (number, method, path, reply)
        if reply.status >= 400 and method != "HEAD":
            assert len(reply.json()["error"]) < 1000
        if reply.status == 201:
            names.append(reply.json()["id"])
    return seen


async def finished(app: Any) -> list[int]:
    """Acquire a slice as a client does."""
    found = (await requested(app, "POST", "/sessions", json.dumps(ASKED).encode())).json()
    order, wanted = [], found["columns"]
    while wanted:
        body = json.dumps([column_of(column) for column in wanted]).encode()
        reply = await requested(app, "POST", f"/sessions/{found['id']}/columns", body)
        order += wanted
        wanted = reply.json()["next_columns"]
    return order


@pytest.mark.slow
def test_no_message_ends_the_service_or_disturbs_a_session(tmp_path: Path) -> None:
    sessions = sessions_of()
    app = Guard(
        make_app(sessions, make_backend(write_store(tmp_path))),
        hosts=LOOPBACK,
        n_bytes=LIMITS.n_bytes,
    )

    async def whole() -> tuple[dict[int, int], list[int]]:
        seen = await fuzz(app, seed=0)
        for name in list(sessions._handles):
            sessions.close(name)
        return seen, await finished(app)

    seen, order = asyncio.run(whole())
    assert {200, 201, 400, 403, 404, 405, 413, 422, 429} <= set(seen)
    assert order == expected()[0]
    sessions.shut()
