"""MRD streams over TCP: one conversation per connection, beside HTTP."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, final

from kscout.errors import KScoutError
from kscout.serve.counts import MOST_THREADS
from kscout.serve.mrd_messages import Id, close_message, read_message, text_message
from kscout.serve.mrd_stream import Stream
from kscout.serve.sessions import Sessions, TooManyError

_LOG = logging.getLogger(__name__)
Work = Callable[..., Awaitable[Any]]
"""Calls a function with its arguments, elsewhere, and returns what it returns."""

_LINGER_S = 1.0
"""What a refused client still sends is thrown away so long: it may then read why."""


@final
class MrdServer:
    """Takes connections while it is entered; sessions stay open when it ends."""

    def __init__(
        self, sessions: Sessions, listening: socket.socket, token: str | None = None
    ) -> None:
        self._sessions, self._listening, self._token = sessions, listening, token
        self._talks: set[asyncio.Task[None]] = set()
        # Decisions are computed together as far as those who ask for them wait together.
        self._pool = ThreadPoolExecutor(
            min(sessions.limits.n_sessions, MOST_THREADS), thread_name_prefix="kscout-mrd"
        )

    async def __aenter__(self) -> "MrdServer":
        self._server = await asyncio.start_server(self._connected, sock=self._listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await asyncio.to_thread(self._pool.shutdown)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._talks) >= self._sessions.limits.n_streams:
            writer.transport.abort()
            return
        is_full = len(self._talks) >= self._sessions.limits.n_sessions
        work = partial(asyncio.get_running_loop().run_in_executor, self._pool)
        found = converse(self._sessions, reader, writer, work, is_full=is_full, token=self._token)
        talk = asyncio.ensure_future(found)
        self._talks.add(talk)

        def ended(talk: asyncio.Task[None]) -> None:
            self._talks.discard(talk)
            # A client that reads nothing would keep a closed connection open.
            talk.get_loop().call_later(self._sessions.limits.receive_s, writer.transport.abort)

        talk.add_done_callback(ended)


async def converse(
    sessions: Sessions,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    work: Work,
    *,
    is_full: bool = False,
    token: str | None = None,
) -> None:
    """Answer one client until it ends, is wrong, or is silent for too long.

    Args:
        sessions: the sessions of the service.
        reader: what it sends.
        writer: what it gets.
        work: computes.
        is_full: whether it comes in vain.
        token: that its config has to contain; None if no token is needed.
    """
    stream, told = Stream(sessions, token), b""
    try:
        try:
            if is_full:
                raise TooManyError(f"{sessions.limits.n_sessions} streams are open; close one")
            await _answer(sessions, stream, reader, writer, work)
            told = close_message()
        except (KScoutError, TimeoutError) as error:
            sessions.counts.add("refused_total")
            words = {"error": str(error) or "the client was silent or slow for too long"}
            told = text_message(Id.TEXT, json.dumps(words)) + close_message()
        # One client may not end the others, whatever it found.
        except Exception as error:
            if not isinstance(error, EOFError | OSError):
                _LOG.exception("a stream ended by a mistake of kscout's")
        await work(stream.end)
        await _part(reader, writer, told)
    finally:
        writer.close()


async def _answer(
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
        answers = await work(stream.take, message)
        async with asyncio.timeout(limits.receive_s):
            for answer in answers:
                writer.write(answer)
                await writer.drain()


async def _part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told: bytes) -> None:
    """Say the last; a connection that is closed with bytes unread would lose that."""
    try:
        async with asyncio.timeout(_LINGER_S):
            writer.write(told)
            await writer.drain()
            writer.write_eof()
            while await reader.read(2**16):
                pass
    except OSError:
        return
