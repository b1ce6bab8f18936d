"""Play a recorded MRD file into a service: in the order that it asks for, or in the file's."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import h5py
import numpy as np
from jaxtyping import Float32
from PIL import Image

from kscout.data.formats import reading
from kscout.data.formats.mrd import COUNTERS, Recording, find_measurement
from kscout.errors import ConfigError, DataError, RunError
from kscout.files import parse_json, written_whole
from kscout.serve.mrd_messages import (
    Id,
    Message,
    acquisition_message,
    close_message,
    read_message,
    text_message,
)

Place = tuple[int, ...]
"""Counters of a slice, in the order of `COUNTERS`."""
Order = Literal["asked", "file"]

_MOST_BYTES = 2**27
"""Of an image that a service sends."""
_SILENT_S = 600.0
"""A service that says nothing for so long is given up."""


@final
@dataclass
class Played:
    """What became of a slice."""

    counters: dict[str, int]
    measured: list[int] = field(default_factory=list)
    """Columns in the order in which they were taken."""
    chosen: list[int] = field(default_factory=list)
    """Columns that the policy, or in its place the fallback, asked for."""
    n_late: int = 0
    image: Float32[np.ndarray, "row col"] | None = None

    @property
    def name(self) -> str:
        """Tells it from others: `slice-003`, and counters that are not 0."""
        more = [f"{name}-{x}" for name, x in self.counters.items() if x and name != "slice"]
        return "-".join([f"slice-{self.counters['slice']:03d}", *more])


def replay(
    path: Path,
    to: str,
    *,
    config: Mapping[str, Any],
    order: Order = "asked",
    header: Path | None = None,
    out: Path | None = None,
) -> list[Played]:
    """Play a file into a service, and return what became of its slices.

    Args:
        path: an MRD file.
        to: HOST:PORT of the service's MRD streams.
        config: what the service takes as config, such as budget and n_initial.
        order: send the lines that are asked for, or all as they lie in the file.
        header: of a file without one.
        out: folder for the images, `.npy` and `.png`.
    """
    host, _, port = to.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{to!r} is no address; give HOST:PORT as the service prints it")
    if path.is_dir():
        raise DataError(f"{path} is a folder, and one MRD file is played; name a file in it")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; name an MRD file")
    with reading(path, "MRD"):
        with h5py.File(path, "r") as file:
            group = find_measurement(file)
        if group is None:
            raise DataError(f"{path} holds no MRD measurement; name another file")
        recording = Recording.open(path, group, header)
        begin = text_message(Id.CONFIG_TEXT, json.dumps(dict(config)))
        begin += text_message(Id.HEADER, recording.xml.decode())
    try:
        played = asyncio.run(_play(recording, begin, (host.strip("[]"), int(port)), order))
    except EOFError as error:
        raise RunError(f"the service at {to} ended the stream; look at its log") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"what listens at {to} answers as no MRD stream of kscout does ({error}); give "
            "the address `mrd` that the service prints"
        ) from error
    except TimeoutError as error:
        raise RunError(
            f"the service at {to} said nothing for {_SILENT_S:g} s; look at its log"
        ) from error
    except OSError as error:
        raise RunError(
            f"{to} cannot be reached ({error.strerror or error}); start `kscout serve`, and give "
            "the address `mrd` that it prints"
        ) from error
    if out is not None:
        _save(played, out)
    return played


async def _play(
    recording: Recording, begin: bytes, address: tuple[str, int], order: Order
) -> list[Played]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        player = _Player(recording, reader, writer)
        writer.write(begin)
        start = (await player.next_text())["columns"]
        await player.send(recording.noise)
        await (player.play_asked(start) if order == "asked" else player.play_file())
        return list(player.played.values())
    except ConnectionError as error:
        raise EOFError from error
    finally:
        writer.close()


@final
class _Player:
    """Sends lines, and notes what is answered."""

    def __init__(
        self, recording: Recording, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._recording, self._reader, self._writer = recording, reader, writer
        readouts = recording.readouts()
        self._line: dict[tuple[Place, int], int] = {}
        """The first line of every column of every slice."""
        for place, column, number in zip(
            readouts.place.tolist(), readouts.column.tolist(), readouts.number, strict=True
        ):
            self._line.setdefault((tuple(place), column), int(number))
        places = sorted({place for place, _ in self._line})
        self.played = {x: Played(dict(zip(COUNTERS, x, strict=True))) for x in places}

    async def send(self, numbers: Iterable[int]) -> None:
        """Send lines in the order given."""
        for number in numbers:
            with reading(self._recording.path, "MRD"):
                (values,) = self._recording.lines(np.array([number]), whole=True)
            self._writer.write(acquisition_message(self._recording.heads[number], values))
            await self._writer.drain()
            # Draining alone lets nobody read why a service refuses what is sent.
            await asyncio.sleep(0)

    async def play_asked(self, start: list[int]) -> None:
        """Send what is asked for, slice after slice."""
        for place, played in self.played.items():
            wanted = start
            while wanted:
                lacking = [column for column in wanted if (place, column) not in self._line]
                if lacking:
                    raise DataError(
                        f"{self._recording.path} lacks column {lacking[0]} of {played.name}, which "
                        "is requested; play it with --order file"
                    )
                await self.send(self._line[place, column] for column in wanted)
                wanted = (await self.next_text())["next_columns"]
        self._writer.write(close_message())
        await self._listen()

    async def play_file(self) -> None:
        """Send all lines as they lie in the file, while listening."""

        async def speak() -> None:
            await self.send(sorted(self._line.values()))
            self._writer.write(close_message())

        speaking = asyncio.ensure_future(speak())
        try:
            await self._listen()
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def next_text(self) -> Any:  # noqa: ANN401 - JSON
        """Return the next answer; images that come before it are kept."""
        while True:
            message = await self._next()
            if message.id is Id.TEXT:
                return parse_json(message.text)
            if message.id is Id.CLOSE:
                raise EOFError

    async def _listen(self) -> None:
        while (await self._next()).id is not Id.CLOSE:
            pass

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(_SILENT_S):
                message = await read_message(self._reader.readexactly, _MOST_BYTES)
        except DataError as error:
            raise ValueError(str(error)) from error
        if message.id is Id.TEXT:
            self._note(parse_json(message.text))
        elif message.id is Id.IMAGE:
            place = tuple(int(message.head[name]) for name in COUNTERS)
            if not message.values.size or not np.isfinite(message.values).all():
                raise ValueError(f"an image of shape {message.values.shape} is empty or not finite")
            self.played[place].image = message.values
        return message

    def _note(self, told: dict[str, Any]) -> None:
        if "error" in told:
            raise RunError(f"the service rejects the stream: {told['error']}")
        if "session" not in told:
            return
        place = tuple(told[name] for name in COUNTERS)
        played = self.played[place]
        played.n_late += told["late"]
        if told["source"] in ("policy", "fallback"):
            played.chosen += told["next_columns"]
        played.measured = told["order"]


def _save(played: list[Played], out: Path) -> None:
    for one in played:
        if one.image is None:
            continue
        with written_whole(out / f"{one.name}.npy") as aside, aside.open("wb") as file:
            np.save(file, one.image)
        levels = np.rint(np.clip(one.image / (one.image.max() or 1), 0, 1) * 255)
        with written_whole(out / f"{one.name}.png") as aside:
            Image.fromarray(levels.astype(np.uint8)).save(aside, format="PNG")
