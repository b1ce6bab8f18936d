"""A recorded file that is played into a service becomes the images of an imported one."""

import json
import os
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mrd_client import listening, plain
from typer.testing import CliRunner

from coil_data import imported, stored
from kscout.acquisition import Scan, Session
from kscout.apps.cli import app as command_line
from kscout.apps.serve.mrd_messages import ACQUISITION_HEAD, Id, image_message, text_message
from kscout.apps.serve.sessions import Limits, Sessions
from kscout.errors import RunError
from mrd_files import N_COLS as FILE_COLS
from mrd_files import NOISE, header, line, lines, write


def played(path: Path, out: Path, *options: str) -> Any:
    sessions = Sessions(plain, limits=Limits())
    with listening(sessions) as (host, port):
        given = ["replay", str(path), "--to", f"{host}:{port}", "--json", "--out", str(out)]
        result = CliRunner().invoke(command_line, [*given, *options])
    sessions.shut()
    if result.exception is not None:
        raise result.exception
    return json.loads(result.output)


def recorded(path: Path) -> Path:
    """Write two slices with noise of three coils, and lines in an order of their own."""
    draw = np.random.default_rng(0)
    noise = (draw.normal(size=(2, 3, 64)) * [[[1], [2], [3]]]).astype(np.float32)
    first = line((noise[0] + 1j * noise[1]).astype(np.complex64), flags=NOISE)
    rows = list(lines())
    return write(path, [first, *(rows[at] for at in draw.permutation(len(rows)))])


@pytest.mark.parametrize("order", ["asked", "file"])
def test_a_file_that_is_played_gives_the_images_of_an_imported_one(
    order: str, tmp_path: Path
) -> None:
    path = recorded(tmp_path / "a.mrd")
    budget = {"asked": 6, "file": 10}[order]
    given = ["--budget", str(budget), "--n-initial", "3", "--order", order]
    told = played(path, tmp_path / "out", *given)
    values = torch.from_numpy(stored(imported(path)))
    assert [one["name"] for one in told] == ["slice-000", "slice-001"]
    for one, slice_ in zip(told, values, strict=True):
        scan = Scan(n_rows=8, n_cols=FILE_COLS, n_coils=3, budget=budget, initial=3)
        with plain(scan) as advisor:
            session = Session(advisor, scan)
            session.measure(one["measured"], slice_[:, :, one["measured"]].movedim(-1, 0))
            image = session.image().numpy()
        found = np.load(tmp_path / "out" / f"{one['name']}.npy")
        np.testing.assert_allclose(found, image, rtol=1e-4, atol=1e-6)
        assert (tmp_path / "out" / f"{one['name']}.png").is_file()
        if order == "asked":
            assert one["measured"] == [4, 5, 6, 3, 7, 2] and one["chosen"] == [3, 7, 2]


def test_a_file_that_lacks_what_is_asked_for_can_be_played_in_its_own_order(tmp_path: Path) -> None:
    some = [row for row in lines() if row.head["idx"]["kspace_encode_step_1"] != 3]
    path = write(tmp_path / "a.mrd", some)
    with pytest.raises(Exception, match="lacks column 3 of slice-000"):
        played(path, tmp_path, "--budget", "6", "--n-initial", "3")
    told = played(path, tmp_path, "--budget", "9", "--n-initial", "3", "--order", "file")
    assert told[0]["measured"] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def error_of(path: Path, to: str, *words: object) -> BaseException | None:
    """Return what a replay raises."""
    given = ["replay", path, "--to", to, *words]
    return CliRunner().invoke(command_line, [*map(str, given)]).exception


@pytest.mark.parametrize("to", ["nowhere", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_told(to: str, tmp_path: Path) -> None:
    assert "HOST:PORT" in str(error_of(recorded(tmp_path / "a.mrd"), to))


def test_why_a_service_refuses_a_file_is_told_while_it_is_played(tmp_path: Path) -> None:
    narrow = header().replace("<maximum>10<", "<maximum>8<")
    path = write(tmp_path / "a.mrd", reversed(list(lines())), xml=narrow)
    with pytest.raises(RunError, match="rejects the stream: column 10 lies outside"):
        played(path, tmp_path, "--budget", "9", "--n-initial", "3", "--order", "file")


def resets(talk: socket.socket) -> None:
    """Ask for columns, then throw the other side out."""
    talk.sendall(text_message(Id.TEXT, '{"columns": [4, 5]}'))
    talk.recv(9)
    talk.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def serves_pages(talk: socket.socket) -> None:
    talk.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    talk.shutdown(socket.SHUT_WR)
    while talk.recv(2**16):
        pass


def sends(message: bytes) -> Callable[[socket.socket], None]:
    """Return a service that sends a start and a message, and reads on."""

    def answer(talk: socket.socket) -> None:
        talk.sendall(text_message(Id.TEXT, '{"columns": [4, 5]}') + message)
        talk.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while talk.recv(2**16):
                pass

    return answer


def image(values: np.ndarray) -> bytes:
    """Return an image of the first slice."""
    return image_message(values, "", np.zeros((), dtype=ACQUISITION_HEAD))


NO_SERVICE = "is not an MRD stream of kscout .*give the address `mrd`"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (sends(text_message(Id.TEXT, "[" * 200_000)), NO_SERVICE),
        (
            sends(image(np.full((3, 4), np.nan, np.float32))),
            r"MRD stream .*\(3, 4\) is empty or not finite",
        ),
        (sends(image(np.zeros((0, 0), np.float32))), NO_SERVICE),
        (serves_pages, NO_SERVICE),
        (resets, "ended the stream; see its log"),
    ],
)
def test_what_is_no_service_or_breaks_off_is_told(
    answer: Callable[[socket.socket], None], words: str, tmp_path: Path
) -> None:
    def listen() -> None:
        with bound.accept()[0] as talk:
            answer(talk)

    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=listen)
        thread.start()
        to = "{}:{}".format(*bound.getsockname())
        error = error_of(recorded(tmp_path / "a.mrd"), to, "--out", tmp_path / "out")
        thread.join()
    assert not (tmp_path / "out").exists()
    assert isinstance(error, RunError) and re.search(words, str(error))


def test_where_nobody_listens_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        to = "{}:{}".format(*bound.getsockname())
    told = error_of(recorded(tmp_path / "a.mrd"), to)
    assert isinstance(told, RunError) and str(told).startswith(f"{to} cannot be reached")
    assert str(told).endswith("give the address `mrd` that it prints")


def test_a_folder_is_told_from_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, words in ((tmp_path, "is a folder; name one"), (tmp_path / "fifo", "not a regular")):
        assert words in str(error_of(path, "127.0.0.1:1"))
