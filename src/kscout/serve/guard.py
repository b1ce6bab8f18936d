"""What is refused before anyone reads it: other hosts, other pages, messages without end."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from typing import Any, final
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _TooLargeError(Exception):
    """A message is longer than it may be."""


@final
class Guard:
    """Checks Host, Origin and length of every request, then lets the service see it.

    A page of another host, or of another service on this machine, that a browser shows can send
    requests here; its Origin gives it away, and the Host where its name was made to point here.
    """

    def __init__(self, app: App, *, hosts: Collection[str], n_bytes: int) -> None:
        self.app, self.hosts, self.n_bytes = app, frozenset(hosts), n_bytes
        most = f"{n_bytes / 2**20:g} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"
        self._too_long = 413, f"the message is longer than {most}; send less at once"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = _headers(scope)
        fault = self._fault(headers)
        if fault is None and scope["type"] == "http":
            fault = await self._served(scope, receive, send)
        elif fault is None:
            await self.app(scope, receive, send)
        if fault is None:
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": fault[1][:120]})
            return
        await _refuse(send, *fault)

    def _fault(self, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        named = headers.get("host", [])
        place = _place(f"//{named[0]}") if len(named) == 1 else None
        if place is None or place[0] not in self.hosts:
            return 403, "the Host of the request is not one that this service is called by"
        for origin in headers.get("origin", []):
            if _place(origin) != place:
                return 403, "the request comes from a page of another host or port"
        for length in headers.get("content-length", []):
            if not length.isascii() or not length.isdigit() or int(length[:20]) > self.n_bytes:
                return self._too_long
        return None

    async def _served(self, scope: Message, receive: Receive, send: Send) -> tuple[int, str] | None:
        n_read, has_begun = 0, False

        async def counted() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self.n_bytes:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal has_begun
            # The service may have an answer of its own to a body that ends in an error.
            if has_begun or n_read <= self.n_bytes:
                has_begun = True
                await send(message)

        try:
            with suppress(_TooLargeError):
                await self.app(scope, counted, noted)
        except asyncio.CancelledError:
            # By the server, when it ends and has waited long enough.
            return None if has_begun else (503, "the service is ending; ask again once it is back")
        return None if has_begun else self._too_long


def _headers(scope: Message) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _place(address: str) -> tuple[str | None, int | None] | None:
    """Return host and port of an address, no port for the usual ones; None if it has no sense."""
    try:
        found = urlsplit(address)
        return found.hostname, None if found.port in (80, 443) else found.port
    except ValueError:
        return None


async def _refuse(send: Send, status: int, told: str) -> None:
    body = json.dumps({"error": told}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
