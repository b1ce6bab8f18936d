"""One MRD stream: receives config, header and lines, and sends the next columns and images.

The client sends the config, the header, the lines and a closing message, in this order. The
counters of the lines identify slices; every slice is a session while the stream is open.
"""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, final

import numpy as np
from jaxtyping import Complex64

from kscout.acquisition import Scan
from kscout.apps.serve.guard import is_token
from kscout.apps.serve.mrd_messages import Id, Message, Record, image_message, text_message
from kscout.apps.serve.sessions import Handle, NoSessionError, Sessions, reply
from kscout.config.records import read
from kscout.data.formats.ismrmrd_header import Encoding, read_header
from kscout.data.formats.mrd import COUNTERS, check_encoding, readouts_of, sort_lines
from kscout.data.formats.readouts import whiten
from kscout.data.importing.kspace_cutting import Cutting
from kscout.errors import DataError
from kscout.files import parse_json

_STREAM = Path("the stream")
"""Name of the stream in error messages."""
_MOST_NOISE = 2**21
"""Largest number of stored noise values."""
_LEAST_NOISE = 64
"""Smallest number of values per line of noise: empty lines also take memory."""


@final
@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """Fields of a config, as JSON; the sizes come from the header."""

    budget: int | None = None
    """Default: a quarter of the columns."""
    n_initial: int | None = None
    """Default: an eighth of the columns."""
    seed: int | None = None
    argmax: bool = False
    columns_per_step: int = 1
    deadline_s: float | None = None
    fallback: tuple[int, ...] = ()
    images: Literal["last", "every"] = "last"
    """Send an image when a slice is complete, or after every step."""
    token: str | None = None
    """Token of the service, if it requires one."""

    def scan(self, encoding: Encoding) -> Scan:
        """Return the scan of every slice, with one coil until the first line arrives."""
        assert encoding.encoded is not None
        n_cols, n_rows = encoding.encoded.matrix[1], encoding.n_readout
        names = ("seed", "argmax", "columns_per_step", "deadline_s")
        settings = {name: getattr(self, name) for name in names}
        scan = Scan(
            n_rows=n_rows or 0,
            n_cols=n_cols,
            budget=max(1, n_cols // 4) if self.budget is None else self.budget,
            initial=max(1, n_cols // 8) if self.n_initial is None else self.n_initial,
            fallback=self.fallback,
            **settings,
        )
        lines = encoding.lines or (-n_cols, 2 * n_cols)
        first, last = (line - _shift(encoding) for line in lines)
        inside = tuple(range(max(0, first), min(n_cols, last + 1)))
        return scan if len(inside) == n_cols else replace(scan, selectable=inside)


@final
@dataclass(eq=False)
class _Slice:
    """A slice that is being acquired."""

    name: str
    handle: Handle
    head: Record
    """Head of its first line."""
    requested: tuple[int, ...]
    """Columns of the last request."""
    pending: dict[int, Complex64[np.ndarray, "coil row"]] = field(default_factory=dict)
    """Received columns of an incomplete request."""


@final
class Stream:
    """Processes the messages of one client in order."""

    def __init__(self, sessions: Sessions, token: str | None = None) -> None:
        self._sessions, self._token = sessions, token
        self._config: StreamConfig | None = None
        self._encoding: Encoding | None = None
        self._scan: Scan | None = None
        self._slices: dict[tuple[int, ...], _Slice] = {}
        self._noise: list[Complex64[np.ndarray, "coil sample"]] = []
        self._n_noise = 0
        self._whitening: Complex64[np.ndarray, "coil coil"] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether config and header were received."""
        return self._scan is not None

    def take(self, message: Message) -> list[bytes]:
        """Process a message and return the responses; an invalid message raises an error."""
        if message.id in (Id.CONFIG_FILE, Id.CONFIG_TEXT):
            return self._configure(message)
        if message.id is Id.HEADER:
            return self._begin(message.text)
        if message.id is Id.ACQUISITION:
            return self._line(message)
        if message.id is Id.CLOSE:
            # Of incomplete slices, from the columns that were received.
            left = [one for one in self._slices.values() if not one.handle.session.is_done]
            return [image for one in left for image in self._image(one)]
        if message.id is Id.IMAGE:
            raise DataError("received an image instead of lines of k-space; send acquisitions")
        return []

    def end(self) -> None:
        """Close the sessions."""
        for one in self._slices.values():
            with suppress(NoSessionError):
                self._sessions.close(one.name)

    def _configure(self, message: Message) -> list[bytes]:
        if self._config is not None:
            raise DataError("received a second config; send one, then the header")
        self._config = StreamConfig()
        # The name of a config file is ignored: the service opens no file for a client.
        if message.id is Id.CONFIG_TEXT and message.text.strip():
            try:
                table = parse_json(message.text)
            except ValueError as error:
                raise DataError(f"the config is no JSON ({error}); correct it") from error
            if not isinstance(table, dict):
                raise DataError('the config is no object of JSON; send one like {"budget": 32}')
            self._config = read(StreamConfig, table)
        if not is_token(self._config.token, self._token):
            raise DataError(
                "the config has no token or another one than this service; send it as JSON, "
                '{"token": TOKEN}'
            )
        return []

    def _begin(self, text: str) -> list[bytes]:
        if self._config is None or self._scan is not None:
            raise DataError("received a header out of order; send a config, then one header")
        try:
            encodings = read_header(text).encodings
        except (ValueError, SyntaxError, RecursionError) as error:
            raise DataError(f"the header cannot be read ({error}); send one of ISMRMRD") from error
        if not encodings:
            raise DataError("the header has no encoding; complete it")
        check_encoding(_STREAM, encodings[0])
        self._encoding, self._scan = encodings[0], self._config.scan(encodings[0])
        scan = self._scan
        sizes = {"n_rows": scan.n_rows, "n_cols": scan.n_cols, "budget": scan.budget}
        columns = {"columns": list(scan.start), **self._line_counters(scan.start)}
        return [text_message(Id.TEXT, json.dumps({**sizes, **columns}))]

    def _line_counters(self, columns: tuple[int, ...]) -> dict[str, list[int]]:
        assert self._encoding is not None
        shift = _shift(self._encoding)
        return {"kspace_encode_step_1": [column + shift for column in columns]}

    def _line(self, message: Message) -> list[bytes]:
        if self._scan is None or self._encoding is None:
            raise DataError("received a line before config and header; send these first")
        heads = message.head.reshape(1)
        is_noise, is_image, _ = sort_lines(heads)
        if is_noise[0]:
            self._n_noise += max(_LEAST_NOISE, message.values.size)
            if self._n_noise <= _MOST_NOISE:
                self._noise.append(message.values)
            return []
        if not is_image[0] or message.head["encoding_space_ref"] != 0:
            return []
        # The session rejects values that overflow here, as all values that are not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            column, values = self._column(message, self._encoding)
        counters = tuple(int(message.head["idx"][name]) for name in COUNTERS)
        if counters not in self._slices:
            self._slices[counters] = self._open(message.head, len(values))
        n_coils = self._slices[counters].handle.session.scan.n_coils
        if len(values) != n_coils:
            raise DataError(
                f"a line has {len(values)} coils, and the slice began with {n_coils}; send all "
                "lines of a slice from the same coils"
            )
        return self._measured(self._slices[counters], column, values)

    def _column(
        self, message: Message, encoding: Encoding
    ) -> tuple[int, Complex64[np.ndarray, "coil row"]]:
        """Return the column of a line, and its values processed as in an import."""
        assert encoding.encoded is not None and encoding.n_readout is not None
        n_rows, n_cols = encoding.encoded.matrix
        (n_coils, _), heads = message.values.shape, message.head.reshape(1)
        lines = readouts_of(heads, np.zeros(1, dtype=np.int64), encoding, n_cols)
        column = int(lines.column[0])
        if message.head["idx"]["kspace_encode_step_2"] or not 0 <= column < n_cols:
            raise DataError(
                f"a line is at column {column} of {n_cols} or outside the plane; send lines of one "
                "plane"
            )
        if self._noise and self._whitening is None:
            self._whitening = whiten(_STREAM, self._noise, n_coils)
        if self._whitening is not None and len(self._whitening) != n_coils:
            raise DataError(
                f"a line has {n_coils} coils, and the noise {len(self._whitening)}; send both from "
                "the same coils"
            )
        line = replace(lines, column=np.zeros(1, dtype=np.int64))
        size = (n_coils, n_rows, 1)
        scan = line.scan(_STREAM, lambda _: [message.values], size=size, whitening=self._whitening)
        cut_size = (encoding.n_readout, 1)
        return column, Cutting((n_rows, 1), cut_size, cut_size).apply(scan.read(0, 1))[0, :, :, 0]

    def _open(self, head: Record, n_coils: int) -> _Slice:
        assert self._scan is not None
        name = self._sessions.open(replace(self._scan, n_coils=n_coils))
        self._sessions.counts.add("sessions_opened_total")
        return _Slice(name, self._sessions.find(name), head, self._scan.start)

    def _measured(
        self, one: _Slice, column: int, values: Complex64[np.ndarray, "coil row"]
    ) -> list[bytes]:
        """Measure columns once the request is complete, or a column outside the request arrives."""
        handle = self._sessions.find(one.name)
        with handle.lock:
            session = handle.session
            n_unrequested = session.scan.budget - session.n_measured - len(session.missing)
            if session.is_done or (
                n_unrequested < 1 and session.missing and column not in one.requested
            ):
                return []
            if column in one.pending:
                raise DataError(f"column {column} was measured already; send every column once")
            one.pending[column] = values
            if column in one.requested and not set(one.requested) <= set(one.pending):
                return []
            columns, one.pending = one.pending, {}
            session.measure(list(columns), np.stack(list(columns.values())))
            self._sessions.counts.add("columns_total", len(columns))
            response = {**reply(session, self._sessions.counts), "order": list(session.order)}
        one.requested = tuple(response["next_columns"])
        counters = {name: int(one.head["idx"][name]) for name in COUNTERS}
        response = {"session": one.name, **counters, **response}
        response |= self._line_counters(one.requested)
        assert self._config is not None
        is_shown = session.is_done or self._config.images == "every"
        advice = text_message(Id.TEXT, json.dumps(response))
        return [advice, *(self._image(one) if is_shown else [])]

    def _image(self, one: _Slice) -> list[bytes]:
        session = one.handle.session
        with one.handle.lock:
            if session.missing:
                return []
            image, n_measured = session.image().cpu().numpy(), session.n_measured
        assert self._encoding is not None and self._encoding.encoded is not None
        view = [x if math.isfinite(x) else 0.0 for x in self._encoding.encoded.field_of_view_mm]
        view[0] *= session.scan.n_rows / max(1, self._encoding.encoded.matrix[0])
        attributes = (
            "<ismrmrdMeta><meta><name>DataRole</name><value>Image</value></meta><meta>"
            f"<name>ImageComments</name><value>kscout: {n_measured} columns</value></meta>"
            "</ismrmrdMeta>"
        )
        fields = {"field_of_view": (*view, 0.0), "image_index": n_measured}
        return [image_message(image, attributes, one.head, **fields)]


def _shift(encoding: Encoding) -> int:
    """Return the difference between the counter of a line and its column."""
    assert encoding.encoded is not None
    middle = encoding.encoded.matrix[1] // 2
    return (middle if encoding.center is None else encoding.center) - middle
