"""Rejection of requests by token, host, origin and length, and limits that uvicorn lacks.

Requests are rejected before the service reads them. The number of connections and the duration of a
request are limited.
"""

import asyncio
import errno
import hmac
import logging
import re
import resource
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address
from types import FrameType
from typing import Any, final
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kscout.apps.serve.sessions import Limits
from kscout.errors import ConfigError
from kscout.json_types import JsonObject

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")
_COOKIE = "kscout_token="
_NO_TOKEN = (
    401,
    (
        "the request has no token or another one than this service; send the header Authorization: "
        "Bearer TOKEN, or open the page as /?token=TOKEN"
    ),
)


def token_for(host: str, token: str | None, *, behind_proxy: bool) -> str | None:
    """Return the token that requests have to contain, or None.

    All hosts but the loopback addresses require one, and a proxy that passes requests of other
    machines to a loopback address; if the user has set none, it is generated.
    """
    if not host.strip():
        raise ConfigError(
            "--host is empty, which stands for all addresses of this machine; give 127.0.0.1 for "
            "this machine only, or 0.0.0.0 for all"
        )
    if token is not None:
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                "the token (--token or KSCOUT_TOKEN) must have 16 to 256 letters, digits or "
                "characters of ._~+/=-; leave it out to have one generated"
            )
        return token
    return secrets.token_urlsafe(24) if behind_proxy or not _is_loopback(host) else None


def is_token(received: object, token: str | None) -> bool:
    """Return whether a client sent the token of the service; true if the service has none."""
    if token is None:
        return True
    return isinstance(received, str) and hmac.compare_digest(received.encode(), token.encode())


class _TooLargeError(Exception):
    """A message exceeds the length limit."""


@final
class Guard:
    """Checks Host, Origin, token and length of every request before it reaches the service.

    A browser may send requests from pages of other hosts or of other services on this machine. The
    Origin identifies these pages; the Host identifies names that were rebound to this address.

    A required token is in the header Authorization, or in the cookie that `/?token=TOKEN` sets.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str], n_bytes: int, token: str | None = None
    ) -> None:
        self.app, self.hosts, self.n_bytes, self.token = app, frozenset(hosts), n_bytes, token
        most = f"{n_bytes / 2**20:g} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"
        self._too_long = 413, f"the message is longer than {most}; send less at once"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        fault = self._fault(headers)
        if fault is None and not any(is_token(one, self.token) for one in _tokens(headers)):
            if self._opens_page(scope):
                await _with_cookie(scope["scheme"], str(self.token))(scope, receive, send)
                return
            fault = _NO_TOKEN
        if fault is None and scope["type"] == "http":
            fault = await self._forward(scope, receive, send)
        elif fault is None:
            await self.app(scope, receive, send)
        if fault is None:
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": fault[1][:120]})
            return
        status, message = fault
        needed = {"www-authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"error": message}, status, needed)(scope, receive, send)

    def _fault(self, headers: Headers) -> tuple[int, str] | None:
        named = headers.getlist("host")
        address = _address(f"//{named[0]}") if len(named) == 1 else None
        if address is None or address[0] not in self.hosts:
            return 403, "the Host of the request is not one that this service is called by"
        for origin in headers.getlist("origin"):
            if _address(origin) != address:
                return 403, "the request comes from a page of another host or port"
        for length in headers.getlist("content-length"):
            if not length.isascii() or not length.isdigit() or int(length[:20]) > self.n_bytes:
                return self._too_long
        return None

    def _opens_page(self, scope: Scope) -> bool:
        """Return whether a browser opens the page by the address with the token."""
        is_page = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/"
        return is_page and is_token(QueryParams(scope["query_string"]).get("token"), self.token)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> tuple[int, str] | None:
        n_read, has_begun = 0, False

        async def counted() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self.n_bytes:
                raise _TooLargeError
            return message

        async def forwarded(message: Message) -> None:
            nonlocal has_begun
            # The service may send its own response to a body that ends in an error.
            if has_begun or n_read <= self.n_bytes:
                has_begun = True
                await send(message)

        try:
            with suppress(_TooLargeError):
                await self.app(scope, counted, forwarded)
        except asyncio.CancelledError:
            # The server cancels requests at shutdown, after the grace period.
            return None if has_begun else (503, "the service is ending; ask again once it is back")
        return None if has_begun else self._too_long


def _tokens(headers: Headers) -> list[str | None]:
    """Return the tokens of a request, and None for a service without a token."""
    cookies = [one.strip() for line in headers.getlist("cookie") for one in line.split(";")]
    values = [(one, _COOKIE) for one in cookies]
    values += [(one, "Bearer ") for one in headers.getlist("authorization")]
    return [None, *(one.removeprefix(start) for one, start in values if one.startswith(start))]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(text: str) -> tuple[str | None, int | None] | None:
    """Return host and port of an address; None for default ports and for invalid addresses."""
    try:
        parts = urlsplit(text)
        return parts.hostname, None if parts.port in (80, 443) else parts.port
    except ValueError:
        return None


def _with_cookie(scheme: str, token: str) -> Response:
    """Return a redirection to the page that moves the token from the address to a cookie."""
    kind = "; HttpOnly; SameSite=Strict" + ("; Secure" if scheme == "https" else "")
    headers = {"location": "./", "set-cookie": f"{_COOKIE}{token}{kind}"}
    return Response(status_code=303, headers=headers)


_LOG = logging.getLogger(__name__)
NO_HANDLES = (errno.EMFILE, errno.ENFILE)
"""Error numbers of a system without free file handles."""
_RESERVED_HANDLES = 128
"""File handles for libraries, datasets and session files, in addition to connections."""
_CHECK_S = 1.0
_FULL = b'{"error": "too many connections are open; close one or try again later"}'
_LOG_EVERY_S = 60.0


def reserve_handles(limits: Limits) -> None:
    """Raise the limit of open files of this process to the number that its connections need."""
    needed = limits.n_connections + limits.n_streams + _RESERVED_HANDLES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"this process may open {hard} files and needs {needed} for {limits.n_sessions} "
            "sessions; lower --most-sessions or raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def log_once_per_minute(
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[asyncio.AbstractEventLoop, JsonObject], None]:
    """Return an exception handler of event loops that logs missing file handles in one line."""
    logged_s = -_LOG_EVERY_S

    def handle(loop: asyncio.AbstractEventLoop, context: JsonObject) -> None:
        nonlocal logged_s
        if getattr(context.get("exception"), "errno", None) not in NO_HANDLES:
            loop.default_exception_handler(context)
        elif clock() - logged_s >= _LOG_EVERY_S:
            logged_s = clock()
            _LOG.warning("no file handles are free; new connections wait (ulimit -n raises them)")

    return handle


@final
class GracefulServer(uvicorn.Server):
    """A server that shuts down gracefully, also after a second signal; the wait is bounded."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown at the first signal; ignore further signals."""
        if not self.should_exit:
            super().handle_exit(sig, frame)


@final
class BoundedProtocol(H11Protocol):
    """The HTTP protocol of uvicorn; closes surplus connections and incomplete requests.

    A request has to arrive completely within a time limit, and a client must not pause longer than
    this limit while it reads a response. WebSockets are limited by their protocol (pings).
    """

    def __init__(self, *, limits: Limits, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**options)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the checks of the connection, or close it if too many are open."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.n_connections:
            self.connections.discard(self)
            head = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
            kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_FULL)
            transport.write(head + kind + _FULL)
            transport.close()
            return
        self._state: object = None
        self._check()

    def _check(self) -> None:
        """Abort the connection if its client neither sent nor read within the time limit."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        cycle, n_unread = self.cycle, self.transport.get_write_buffer_size()
        is_incomplete = cycle is None or cycle.more_body or cycle.response_complete
        if not (is_incomplete or n_unread) or self._state != (cycle, n_unread):
            self._state, self._since_s = (cycle, n_unread), self.loop.time()
        elif self.loop.time() - self._since_s > self._limits.receive_s:
            self.transport.abort()
            return
        self.loop.call_later(min(_CHECK_S, self._limits.receive_s), self._check)
