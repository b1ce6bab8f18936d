"""MRD streams over TCP: one stream per connection."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, final

from kscout.apps.serve.mrd_messages import Id, close_message, read_message, text_message
from kscout.apps.serve.mrd_stream import Stream
from kscout.apps.serve.sessions import MOST_THREADS, Sessions, TooManyError
from kscout.errors import KScoutError

_LOG = logging.getLogger(__name__)
Work = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread pool, and returns its result."""

_LINGER_S = 1.0
"""Seconds for which input of a rejected client is discarded, so it can read the error."""


@final
class MrdServer:
    """Accepts connections while it is entered; sessions stay open when it ends."""

    def __init__(
        self, sessions: Sessions, listening: socket.socket, token: str | None = None
    ) -> None:
        self._sessions, self._listening, self._token = sessions, listening, token
        self._streams: set[asyncio.Task[None]] = set()
        # Decisions of sessions that wait at the same time are computed in one batch.
        self._pool = ThreadPoolExecutor(
            min(sessions.limits.n_sessions, MOST_THREADS), thread_name_prefix="kscout-mrd"
        )

    async def __aenter__(self) -> "MrdServer":
        self._server = await asyncio.start_server(self._connected, sock=self._listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._streams) >= self._sessions.limits.n_streams:
            writer.transport.abort()
            return
        is_full = len(self._streams) >= self._sessions.limits.n_sessions
        work = partial(asyncio.get_running_loop().run_in_executor, self._pool)
        serving = serve_stream(
            self._sessions, reader, writer, work, is_full=is_full, token=self._token
        )
        task = asyncio.ensure_future(serving)
        self._streams.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._streams.discard(task)
            # A client that does not read would keep a closed connection open.
            task.get_loop().call_later(self._sessions.limits.receive_s, writer.transport.abort)

        task.add_done_callback(end)


async def serve_stream(
    sessions: Sessions,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    work: Work,
    *,
    is_full: bool = False,
    token: str | None = None,
) -> None:
    """Serve one client until it closes the stream, sends an error, or is silent for too long.

    `work` runs computations in threads. A client of a full service only receives the error.
    """
    stream, last = Stream(sessions, token), b""
    try:
        try:
            if is_full:
                raise TooManyError(f"{sessions.limits.n_sessions} streams are open; close one")
            await _respond(sessions, stream, reader, writer, work)
            last = close_message()
        except (KScoutError, TimeoutError) as error:
            sessions.counts.add("refused_total")
            message = {"error": str(error) or "the client was silent or slow for too long"}
            last = text_message(Id.TEXT, json.dumps(message)) + close_message()
        # An error in one stream must not end the others.
        except Exception as error:
            if not isinstance(error, EOFError | OSError):
                _LOG.exception("a stream ended with an internal error of kscout")
        await work(stream.end)
        await _close(reader, writer, last)
    finally:
        writer.close()


async def _respond(
    sessions: Sessions,
    stream: Stream,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    work: Work,
) -> None:
    limits, message = sessions.limits, None
    while message is None or message.id is not Id.CLOSE:
        # Between messages a scanner may pause, but not before it has configured the stream.
        async with asyncio.timeout(limits.idle_s if stream.is_begun else limits.receive_s):
            begin = await reader.readexactly(1)
        async with asyncio.timeout(limits.receive_s):
            message = await read_message(reader.readexactly, limits.n_bytes, begin)
        responses = await work(stream.take, message)
        async with asyncio.timeout(limits.receive_s):
            for response in responses:
                writer.write(response)
                await writer.drain()


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last: bytes) -> None:
    """Send the last messages; closing a connection with unread input would discard them."""
    try:
        async with asyncio.timeout(_LINGER_S):
            writer.write(last)
            await writer.drain()
            writer.write_eof()
            while await reader.read(2**16):
                pass
    except OSError:
        return
