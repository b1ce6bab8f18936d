"""MRD streams to a service: by the ismrmrd package over a socket, or as bytes without one."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ismrmrd
import numpy as np
from ismrmrd.serialization import ConfigText, ProtocolDeserializer, ProtocolSerializer

from kscout.acquisition import Advisor, Scan
from kscout.apps.serve.mrd import MrdServer, serve_stream
from kscout.apps.serve.sessions import Sessions
from kscout.policies.fixed import CenterOut
from kscout.reconstruction.zero_filled import ZeroFilled


@contextmanager
def listening(sessions: Sessions) -> Iterator[tuple[str, int]]:
    """Take streams in a thread of their own; yield where."""
    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def live() -> None:
        async with MrdServer(sessions, bound):
            ready.set()
            await stop.wait()

    with socket.create_server(("127.0.0.1", 0)) as bound:
        address = bound.getsockname()
        thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
        thread.start()
        ready.wait()
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


@contextmanager
def talking(
    address: tuple[str, int], header: str, **config: Any
) -> Iterator[tuple[ProtocolSerializer, Iterator[Any]]]:
    """Begin a stream; yield what sends objects, and what comes in."""
    with socket.create_connection(address) as connection, connection.makefile("rwb") as file:
        sender = ProtocolSerializer(file)
        sender.serialize(ConfigText(json.dumps(config)))
        sender.serialize(ismrmrd.xsd.CreateFromDocument(header))
        file.flush()
        yield sender, ProtocolDeserializer(file).deserialize()


def acquisition(values: np.ndarray, line: int, **counters: int) -> ismrmrd.Acquisition:
    """Return a line as the ismrmrd package makes it."""
    found = ismrmrd.Acquisition.from_array(
        values.astype(np.complex64), center_sample=values.shape[1] // 2
    )
    found.idx.kspace_encode_step_1 = line
    for name, value in counters.items():
        setattr(found.idx, name, value)
    return found


def plain(scan: Scan) -> Advisor:
    """Return what takes columns from the center outwards, and does not reconstruct."""
    return Advisor(ZeroFilled(), CenterOut(n_cols=scan.n_cols))


class Writer:
    """Takes what a stream answers, in place of a socket."""

    def __init__(self) -> None:
        self.raw = b""

    def write(self, raw: bytes) -> None:
        self.raw += raw

    async def drain(self) -> None:
        return

    def write_eof(self) -> None:
        return

    def close(self) -> None:
        return


async def _directly(function: Any, *given: Any) -> Any:
    return function(*given)


async def answered(sessions: Sessions, sent: bytes, **given: Any) -> bytes:
    """Return what is answered to the bytes of a whole stream."""
    reader, writer = asyncio.StreamReader(), Writer()
    reader.feed_data(sent)
    reader.feed_eof()
    await serve_stream(sessions, reader, writer, _directly, **given)  # type: ignore[arg-type]
    return writer.raw
