"""MRD streams take the columns and give the images of sessions; what is wrong ends them alone."""

import asyncio
import io
import json
import random
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ismrmrd
import numpy as np
import pytest
from ismrmrd.serialization import ProtocolDeserializer, ProtocolSerializer
from mrd_client import acquisition, answered, listening, plain, talking
from test_app import LIMITS, N_COILS, N_COLS, N_ROWS, expected, kspace, maker, sessions_of

from kscout.acquisition import Scan, Session
from kscout.apps.serve.mrd_messages import (
    ACQUISITION_HEAD,
    Id,
    acquisition_message,
    close_message,
    read_message,
    text_message,
)
from kscout.apps.serve.mrd_stream import Stream
from kscout.apps.serve.sessions import Limits, Sessions

CONFIG = {"budget": 7, "n_initial": 3}
HEADER = f"""<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
<experimentalConditions><H1resonanceFrequency_Hz>123000000</H1resonanceFrequency_Hz>
</experimentalConditions><encoding><encodedSpace>
<matrixSize><x>{N_ROWS}</x><y>{N_COLS}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>240</x><y>160</y><z>5</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>{N_ROWS}</x><y>{N_COLS}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>240</x><y>160</y><z>5</z></fieldOfView_mm></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>4</minimum><maximum>19</maximum>
<center>12</center></kspace_encoding_step_1></encodingLimits>
<trajectory>cartesian</trajectory></encoding></ismrmrdHeader>"""
SHIFT = 4
"""Line 12 is the center, column 8."""


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    sessions = sessions_of()
    yield sessions
    sessions.shut()


def send(sender: ProtocolSerializer, *columns: int, **counters: int) -> None:
    for column in columns:
        sender.serialize(acquisition(kspace()[:, :, column], column + SHIFT, **counters))
    sender._stream.flush()


def test_a_stream_of_the_ismrmrd_package_takes_the_columns_of_a_session(sessions: Sessions) -> None:
    columns, image = expected()
    with listening(sessions) as address, talking(address, HEADER, **CONFIG) as (sender, found):
        told = json.loads(next(found))
        assert told["columns"] == [7, 8, 9] and told["kspace_encode_step_1"] == [11, 12, 13]
        order = list(told["columns"])
        send(sender, *order, slice=2)
        while (answer := json.loads(next(found)))["next_columns"]:
            assert answer["slice"] == 2 and len(answer["scores"]) == N_COLS
            assert answer["kspace_encode_step_1"] == [answer["next_column"] + SHIFT]
            order += answer["next_columns"]
            send(sender, *answer["next_columns"], slice=2)
        assert answer["done"] and order == columns
        seen = next(found)
        assert isinstance(seen, ismrmrd.Image) and seen.slice == 2 and len(sessions) == 1
        np.testing.assert_array_equal(seen.data[0, 0].T, image)
        assert list(seen.field_of_view) == [240, 160, 0]
        assert ismrmrd.Meta.deserialize(seen.attribute_string)["DataRole"] == "Image"
        send(sender, 0, slice=2)
        sender.close()
        assert list(found) == []
    assert not len(sessions) and "kscout_columns_total 7" in sessions.counts.text(0)


def test_slices_are_sessions_of_their_own_and_their_images_come_at_the_end(
    sessions: Sessions,
) -> None:
    with listening(sessions) as address, talking(address, HEADER, **CONFIG) as (sender, found):
        for column in (9, 7, 8, 4):
            send(sender, column, slice=0)
            send(sender, column, slice=1)
        send(sender, 7, slice=2)
        sender.close()
        texts, images = [], []
        for one in found:
            (texts if isinstance(one, str) else images).append(one)
    told = [json.loads(text) for text in texts[1:]]
    assert [(one["slice"], one["n_measured"]) for one in told] == [(0, 3), (1, 3), (0, 4), (1, 4)]
    assert [image.slice for image in images] == [0, 1]


def test_columns_of_an_echo_train_are_taken_together(sessions: Sessions) -> None:
    scan = {"n_rows": N_ROWS, "n_cols": N_COLS, "n_coils": N_COILS, "budget": 7, "initial": 3}
    with maker()(Scan(**scan)) as advisor:
        session = Session(advisor, Scan(**scan, columns_per_step=3))
        while columns := session.advise().columns:
            session.measure(columns, kspace()[:, :, list(columns)].transpose(2, 0, 1))
        image = session.image().numpy()
    with (
        listening(sessions) as address,
        talking(address, HEADER, **CONFIG, columns_per_step=3, images="every") as (sender, found),
    ):
        wanted, images = json.loads(next(found))["columns"], []
        while wanted:
            send(sender, *wanted)
            wanted = json.loads(next(found))["next_columns"]
            images.append(next(found))
        sender.close()
    assert len(images) == 3
    np.testing.assert_array_equal(images[-1].data[0, 0].T, image)


def test_what_kscout_sends_is_what_the_package_reads() -> None:
    values = kspace()[:, :, 3]
    sent = acquisition(values, 3, slice=5)
    raw = io.BytesIO()
    ProtocolSerializer(raw).serialize(sent)
    head = np.frombuffer(raw.getvalue()[2:342], ACQUISITION_HEAD)[0]
    assert acquisition_message(head, values) == raw.getvalue()
    (seen,) = ProtocolDeserializer(io.BytesIO(raw.getvalue() + close_message())).deserialize()
    assert isinstance(seen, ismrmrd.Acquisition) and seen.idx.slice == 5


# What is wrong.

BEGIN = text_message(Id.CONFIG_TEXT, json.dumps(CONFIG))
HEAD = text_message(Id.HEADER, HEADER)
COUNTERS = ACQUISITION_HEAD["idx"]


def lines_of(*columns: int, **changes: Any) -> bytes:
    raw = b""
    for column in columns:
        head = np.zeros((), dtype=ACQUISITION_HEAD)
        head["idx"]["kspace_encode_step_1"] = column + SHIFT
        head["center_sample"] = N_ROWS // 2
        for name, value in changes.items():
            head[name] = value
        raw += acquisition_message(head, kspace()[:, :, column])
    return raw


START = BEGIN + HEAD + lines_of(7, 8, 9)


def _declared(**sizes: int) -> bytes:
    head = np.zeros((), dtype=ACQUISITION_HEAD)
    for name, value in sizes.items():
        head[name] = value
    return struct.pack("<H", Id.ACQUISITION) + head.tobytes()


OPENED = BEGIN + HEAD


def header_of(old: str, new: str) -> bytes:
    """Return the beginning of a stream whose header has something else."""
    assert old in HEADER
    return BEGIN + text_message(Id.HEADER, HEADER.replace(old, new))


def _of_slice(number: int) -> bytes:
    return lines_of(7, idx=np.array((11, 0, 0, number, 0, 0, 0, 0, 0, [0] * 8), dtype=COUNTERS))


THREE_COILS = acquisition_message(
    np.zeros((), dtype=ACQUISITION_HEAD), np.zeros((3, N_ROWS), np.complex64)
)
BAD: dict[str, bytes] = {
    "garbage": b"GET / HTTP/1.1\r\n\r\n",
    "line first": lines_of(7),
    "header first": HEAD,
    "header twice": OPENED + HEAD,
    "config twice": BEGIN + BEGIN,
    "config of no JSON": text_message(Id.CONFIG_TEXT, "<xml/>"),
    "config deep": text_message(Id.CONFIG_TEXT, "[" * 100_000),
    "config unknown": text_message(Id.CONFIG_TEXT, '{"path": "../x"}'),
    "config of no budget": text_message(Id.CONFIG_TEXT, '{"budget": 99}') + HEAD,
    "config no text": struct.pack("<HI", Id.CONFIG_TEXT, 2) + b"\xff\xff",
    "header of no XML": BEGIN + text_message(Id.HEADER, "<a"),
    "header of entities": BEGIN + text_message(Id.HEADER, "<!DOCTYPE x><a/>"),
    "header empty": BEGIN + text_message(Id.HEADER, "<ismrmrdHeader/>"),
    "header huge": header_of(f"<y>{N_COLS}", "<y>99999999999"),
    "header 3D": header_of("<z>1", "<z>8"),
    "header of spirals": header_of("cartesian", "spiral"),
    "gigabyte of text": BEGIN + struct.pack("<HI", Id.HEADER, 2**30),
    "gigabytes of samples": OPENED + _declared(number_of_samples=65535, active_channels=65535),
    "gigabytes of path": OPENED + _declared(number_of_samples=65535, trajectory_dimensions=65535),
    "gigabytes of waveform": struct.pack("<H", Id.WAVEFORM) + b"\xff" * 40,
    "no coil": OPENED + _declared(number_of_samples=12),
    "no samples": OPENED + _declared(active_channels=2),
    "samples all discarded": OPENED + lines_of(7, discard_pre=9, discard_post=9),
    "center outside": OPENED + lines_of(7, center_sample=60000),
    "column outside": OPENED + lines_of(7, idx=np.zeros((), dtype=COUNTERS)),
    "twice": START + lines_of(7),
    "twice in the start": OPENED + lines_of(7, 7),
    "not a number": START + lines_of(0)[:-8] + b"\xff" * 8,
    "many slices": OPENED + b"".join(map(_of_slice, range(LIMITS.n_sessions + 1))),
    "other coils": START + THREE_COILS,
    "other coils in the start": OPENED + lines_of(7) + THREE_COILS,
    "an image": START + struct.pack("<H", Id.IMAGE) + b"\0" * 400,
}


@pytest.mark.parametrize("name", BAD)
def test_a_stream_that_is_wrong_is_told_why_and_closed(
    sessions: Sessions, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    raw = asyncio.run(answered(sessions, BAD[name]))
    *_, last = ProtocolDeserializer(io.BytesIO(raw)).deserialize()
    assert 0 < len(json.loads(last)["error"]) < 1000
    assert not len(sessions) and not caplog.records


def test_a_stream_whose_lines_leave_out_the_start_is_told_a_start_that_they_have(
    sessions: Sessions,
) -> None:
    """Lines from 11 on are columns from 7 on, of 16."""
    partial = HEADER.replace("<minimum>4", "<minimum>11")
    for n_initial, word in ((3, "columns"), (5, "error")):
        config = text_message(Id.CONFIG_TEXT, json.dumps({"budget": 7, "n_initial": n_initial}))
        sent = config + text_message(Id.HEADER, partial) + close_message()
        raw = asyncio.run(answered(sessions, sent))
        told = json.loads(next(ProtocolDeserializer(io.BytesIO(raw)).deserialize()))
        assert word in told
    assert told["error"].endswith("start from 3 or fewer")


def test_half_a_message_leaves_nothing_behind_and_the_next_client_is_served(
    sessions: Sessions,
) -> None:
    whole = START + lines_of(0) + close_message()
    with listening(sessions) as address:
        for end in (0, 1, 2, 5, len(BEGIN) + 9, len(START) - 1, len(whole) - 2, len(whole) - 1):
            with socket.create_connection(address) as connection:
                connection.sendall(whole[:end])
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(2**16):
                    pass
            assert not len(sessions)
        with talking(address, HEADER, **CONFIG) as (sender, found):
            assert json.loads(next(found))["budget"] == 7
            sender.close()
            assert list(found) == []


def test_a_client_that_goes_on_sending_still_reads_why_it_was_refused(sessions: Sessions) -> None:
    with listening(sessions) as address, socket.create_connection(address) as connection:
        connection.sendall(b"\xff" * 200_000)
        with connection.makefile("rb") as file:
            (text,) = ProtocolDeserializer(file).deserialize()
    assert "number 65535" in json.loads(text)["error"]


def test_streams_are_limited_in_number() -> None:
    sessions = Sessions(maker(), limits=Limits(n_sessions=1))
    with listening(sessions) as address, talking(address, HEADER, **CONFIG) as (_, found):
        next(found)
        with socket.create_connection(address) as connection, connection.makefile("rb") as file:
            connection.shutdown(socket.SHUT_WR)
            (text,) = ProtocolDeserializer(file).deserialize()
    assert "1 streams are open" in json.loads(text)["error"]
    sessions.shut()


def test_the_end_of_the_service_keeps_the_sessions_of_streams(tmp_path: Path) -> None:
    sessions, service = sessions_of(tmp_path), ExitStack()
    address = service.enter_context(listening(sessions))
    with talking(address, HEADER, **CONFIG) as (sender, found):
        next(found)
        send(sender, 7, 8, 9)
        told = json.loads(next(found))
        service.close()
    sessions.shut()
    again = sessions_of(tmp_path)
    assert again.restore() == 1
    session = again.find(told["session"]).session
    assert session.order == [7, 8, 9] and session.advise().columns == (told["next_column"],)
    again.shut()


def test_lines_of_noise_keep_no_more_than_their_samples(sessions: Sessions) -> None:
    """Discarded samples and trajectories are not kept."""
    noise = np.zeros((), dtype=ACQUISITION_HEAD)
    noise["flags"] = 1 << 18
    noise["discard_pre"] = 65_000
    line = acquisition_message(noise, np.ones((4, 65_010), np.complex64))
    stream = Stream(sessions)

    async def take(n_lines: int) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(BEGIN + HEAD + line * n_lines)
        for _ in range(2 + n_lines):
            stream.take(await read_message(reader.readexactly, 2**25))

    tracemalloc.start()
    try:
        asyncio.run(take(10))
        n_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_bytes < len(line)


N_STREAMS = 80


def odd_stream(draw: random.Random) -> bytes:
    """Return a stream with bytes changed, lost, doubled or put in."""
    whole = bytearray(START + lines_of(draw.randrange(N_COLS), 3) + close_message())
    for _ in range(draw.randrange(1, 4)):
        # The beginning of every message is where lengths and counters are.
        at = draw.choice([draw.randrange(len(whole)), len(BEGIN + HEAD) + draw.randrange(340)])
        kind = draw.randrange(5)
        if kind == 0:
            whole[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            whole[at : at + 2] = draw.choice([b"\0\0", b"\xff\xff", b"\0\x80", b"\1\0"])
        elif kind == 2:
            del whole[at : at + draw.randrange(1, 400)]
        elif kind == 3:
            whole[at:at] = draw.randbytes(draw.randrange(1, 40))
        else:
            begin = draw.randrange(len(whole))
            whole[at:at] = whole[begin : begin + 400]
    return bytes(whole)


@pytest.mark.slow
def test_no_stream_ends_the_service(caplog: pytest.LogCaptureFixture) -> None:
    draw, sessions = random.Random(0), Sessions(plain, limits=LIMITS)

    async def all_of_them() -> list[bytes]:
        return [await answered(sessions, odd_stream(draw)) for _ in range(N_STREAMS)]

    found = asyncio.run(all_of_them())
    n_told = sum(b'"error"' in raw for raw in found)
    assert 25 < n_told < N_STREAMS and not caplog.records and not len(sessions)
    assert b'"next_column": 6' in asyncio.run(answered(sessions, START))
    sessions.shut()
