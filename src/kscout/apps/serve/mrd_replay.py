"""Send a recorded MRD file to a service, in the requested order or in the order of the file."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import h5py
import numpy as np
from jaxtyping import Float32

from kscout.apps.serve import mrd_messages as mrd
from kscout.data.formats import reading
from kscout.data.formats.mrd import COUNTERS, MrdRecording, find_measurement
from kscout.errors import ConfigError, DataError, RunError
from kscout.figures.png import gray_picture
from kscout.files import parse_json, written_whole
from kscout.json_types import JsonObject

SliceCounters = tuple[int, ...]
"""Counters of a slice, in the order of `COUNTERS`."""
Order = Literal["asked", "file"]

_MOST_BYTES = 2**27
"""Largest number of bytes of an image from a service."""
_SILENT_S = 600.0
"""Seconds without a message after which the replay fails."""


@final
@dataclass
class ReplayedSlice:
    """The result of one slice."""

    counters: dict[str, int]
    measured: list[int] = field(default_factory=list)
    """Columns in the order of measurement."""
    chosen: list[int] = field(default_factory=list)
    """Columns that the policy or the fallback requested."""
    n_late: int = 0
    image: Float32[np.ndarray, "row col"] | None = None

    @property
    def name(self) -> str:
        """Unique name: `slice-003`, followed by the other counters that are not 0."""
        more = [f"{name}-{x}" for name, x in self.counters.items() if x and name != "slice"]
        return "-".join([f"slice-{self.counters['slice']:03d}", *more])


def replay(
    path: Path,
    to: str,
    *,
    config: Mapping[str, object],
    order: Order = "asked",
    header: Path | None = None,
    out: Path | None = None,
) -> list[ReplayedSlice]:
    """Send a file to a service, and return the results of its slices.

    `config` is that of the stream, such as budget and n_initial. The order is that of the requests
    or of the file, and `out` a folder for the images, `.npy` and `.png`.
    """
    host, _, port = to.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{to!r} is no address; give HOST:PORT as the service prints it")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name one MRD file in it")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; name an MRD file")
    with reading(path, "MRD"):
        with h5py.File(path, "r") as file:
            group = find_measurement(file)
        if group is None:
            raise DataError(f"{path} holds no MRD measurement; name another file")
        recording = MrdRecording.open(path, group, header)
        begin = mrd.text_message(mrd.Id.CONFIG_TEXT, json.dumps(dict(config)))
        begin += mrd.text_message(mrd.Id.HEADER, recording.xml.decode())
    try:
        slices = asyncio.run(_play(recording, begin, (host.strip("[]"), int(port)), order))
    except EOFError as error:
        raise RunError(f"the service at {to} ended the stream; see its log") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"the server at {to} is not an MRD stream of kscout ({error}); give "
            "the address `mrd` that the service prints"
        ) from error
    except TimeoutError as error:
        raise RunError(
            f"the service at {to} sent no message for {_SILENT_S:g} s; see its log"
        ) from error
    except OSError as error:
        raise RunError(
            f"{to} cannot be reached ({error.strerror or error}); start `kscout serve`, and give "
            "the address `mrd` that it prints"
        ) from error
    if out is not None:
        _save(slices, out)
    return slices


async def _play(
    recording: MrdRecording, begin: bytes, address: tuple[str, int], order: Order
) -> list[ReplayedSlice]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        player = _Player(recording, reader, writer)
        writer.write(begin)
        start = (await player.next_text())["columns"]
        await player.send(recording.noise)
        await (player.play_asked(start) if order == "asked" else player.play_file())
        return list(player.slices.values())
    except ConnectionError as error:
        raise EOFError from error
    finally:
        writer.close()


@final
class _Player:
    """Sends lines and records the responses."""

    def __init__(
        self, recording: MrdRecording, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._recording, self._reader, self._writer = recording, reader, writer
        readouts = recording.readouts()
        self._line: dict[tuple[SliceCounters, int], int] = {}
        """The first line of every column of every slice."""
        for counters, column, number in zip(
            readouts.place.tolist(), readouts.column.tolist(), readouts.number, strict=True
        ):
            self._line.setdefault((tuple(counters), column), int(number))
        slices = sorted({counters for counters, _ in self._line})
        self.slices = {x: ReplayedSlice(dict(zip(COUNTERS, x, strict=True))) for x in slices}

    async def send(self, numbers: Iterable[int]) -> None:
        """Send lines in the given order."""
        for number in numbers:
            with reading(self._recording.path, "MRD"):
                (values,) = self._recording.lines(np.array([number]), whole=True)
            self._writer.write(mrd.acquisition_message(self._recording.heads[number], values))
            await self._writer.drain()
            # `drain` may return without a task switch; the reader has to see errors of the service.
            await asyncio.sleep(0)

    async def play_asked(self, start: list[int]) -> None:
        """Send the requested lines, slice by slice."""
        for counters, one in self.slices.items():
            requested = start
            while requested:
                missing = [x for x in requested if (counters, x) not in self._line]
                if missing:
                    raise DataError(
                        f"{self._recording.path} lacks column {missing[0]} of {one.name}, which "
                        "is requested; play it with --order file"
                    )
                await self.send(self._line[counters, column] for column in requested)
                requested = (await self.next_text())["next_columns"]
        self._writer.write(mrd.close_message())
        await self._listen()

    async def play_file(self) -> None:
        """Send all lines in the order of the file, and receive messages at the same time."""

        async def send_all() -> None:
            await self.send(sorted(self._line.values()))
            self._writer.write(mrd.close_message())

        sending = asyncio.ensure_future(send_all())
        try:
            await self._listen()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def next_text(self) -> Any:  # noqa: ANN401 - JSON
        """Return the next response; images that arrive before it are stored."""
        while True:
            message = await self._next()
            if message.id is mrd.Id.TEXT:
                return parse_json(message.text)
            if message.id is mrd.Id.CLOSE:
                raise EOFError

    async def _listen(self) -> None:
        while (await self._next()).id is not mrd.Id.CLOSE:
            pass

    async def _next(self) -> mrd.Message:
        try:
            async with asyncio.timeout(_SILENT_S):
                message = await mrd.read_message(self._reader.readexactly, _MOST_BYTES)
        except DataError as error:
            raise ValueError(str(error)) from error
        if message.id is mrd.Id.TEXT:
            self._record(parse_json(message.text))
        elif message.id is mrd.Id.IMAGE:
            counters = tuple(int(message.head[name]) for name in COUNTERS)
            if not message.values.size or not np.isfinite(message.values).all():
                raise ValueError(f"an image of shape {message.values.shape} is empty or not finite")
            self.slices[counters].image = message.values
        return message

    def _record(self, response: JsonObject) -> None:
        if "error" in response:
            raise RunError(f"the service rejects the stream: {response['error']}")
        if "session" not in response:
            return
        one = self.slices[tuple(response[name] for name in COUNTERS)]
        one.n_late += response["late"]
        if response["source"] in ("policy", "fallback"):
            one.chosen += response["next_columns"]
        one.measured = response["order"]


def _save(slices: list[ReplayedSlice], out: Path) -> None:
    for one in slices:
        if one.image is None:
            continue
        with written_whole(out / f"{one.name}.npy") as aside, aside.open("wb") as file:
            np.save(file, one.image)
        with written_whole(out / f"{one.name}.png") as aside:
            gray_picture(one.image, float(one.image.max())).save(aside, format="PNG")
