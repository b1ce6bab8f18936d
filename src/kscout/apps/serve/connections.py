"""Limits that uvicorn lacks: the number of connections and the duration of a request."""

import asyncio
import errno
import logging
import resource
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kscout.apps.serve.sessions import Limits
from kscout.errors import ConfigError
from kscout.json_types import JsonObject

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
