"""The command listens, tells where, and ends without losing a session."""

import base64
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import torch
from page_backend import blobs, make_backend, write_store
from test_app import ASKED, column_of
from websockets.sync.client import connect

from fuzz.forks import command, start
from kscout.acquisition import Advisor, Scan
from kscout.acquisition.scan import read_session
from kscout.apps.serve.mrd_messages import close_message
from kscout.apps.serve.run import fallback_maker, policy_maker, serve
from kscout.apps.serve.service import ServeSettings
from kscout.apps.serve.sessions import MOST_SPARE, Defaults, Limits, Sessions, advisor_maker
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, KScoutError
from kscout.files import locked
from kscout.policies import save
from kscout.policies.fixed import CenterOut, FixedOrder, NaOracle
from kscout.reconstruction.zero_filled import ZeroFilled

SCAN = Scan(n_rows=5, n_cols=16, budget=7, initial=3)


def sent(address: str, message: Any) -> Any:
    request = urllib.request.Request(address, json.dumps(message).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def settings_of(**given: Any) -> ServeSettings:
    models = {"reconstructor": ("zero-filled",), "policy": ("center-out",)}
    return ServeSettings(**{**models, "device": "cpu", **given})


def begun(folder: Path, **given: Any) -> tuple[int, str]:
    """Start a service in a process of its own; return that, and where it says that it listens."""
    ready, tell = os.pipe()

    def work() -> int:
        on_ready = lambda line: os.write(tell, f"{line}\n".encode())  # noqa: E731
        serve(settings_of(**given), on_ready=on_ready)
        return 0

    child = start(work, folder, folder / "log")
    os.close(tell)
    with os.fdopen(ready) as told:
        line = told.readline()
    assert line, (folder / "log").read_text()
    return child, line


@pytest.mark.slow
def test_a_service_that_is_told_to_end_keeps_its_sessions(tmp_path: Path) -> None:
    child, told = begun(tmp_path, keep=tmp_path / "kept")
    try:
        places = json.loads(told)
        address, mrd_port = places["http"], places["mrd_port"]
        assert places["mrd"] == f"127.0.0.1:{mrd_port}"
        with socket.create_connection(("127.0.0.1", mrd_port)) as stream:
            stream.sendall(close_message())
            assert stream.recv(9) == close_message()
        assert address.startswith("http://127.0.0.1:")
        name = sent(f"{address}/sessions", ASKED)["id"]
        sent(f"{address}/sessions/{name}/columns", [column_of(c) for c in (7, 8, 9)])
        place = f"{address.replace('http', 'ws', 1)}/sessions/{name}/stream"
        with connect(place, proxy=None) as messages:
            messages.send(json.dumps(column_of(6)))
            assert json.loads(messages.recv())["next_column"] == 10
        asking = Asking(address)
        asking.start()
        asking.is_under_way.wait()
    finally:
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    asking.join()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, (tmp_path / "log").read_text()
    kept = {file.stem: read_session(file).facts for file in (tmp_path / "kept").glob("*.npz")}
    assert set(kept) == {name, asking.name} and kept[name]["order"] == [7, 8, 9, 6]
    order = kept[asking.name]["order"]
    assert len(asking.answered) >= 10 and order[: len(asking.answered)] == asking.answered
    assert len(order) <= len(asking.answered) + 1, "no more than was sent"


@pytest.mark.slow
def test_a_second_signal_does_not_cut_the_end_short(tmp_path: Path) -> None:
    child, told = begun(tmp_path, keep=tmp_path / "kept")
    sent(f"{json.loads(told)['http']}/sessions", ASKED)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(child, number)
        time.sleep(0.02)
    _, status = os.waitpid(child, 0)
    log = (tmp_path / "log").read_text()
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM and log == ""


class Asking(threading.Thread):
    """Sends column after column of a session until nobody answers."""

    def __init__(self, address: str) -> None:
        super().__init__()
        asked = {**ASKED, "n_rows": 9, "n_cols": 1024, "n_coils": 1, "budget": 1024, "n_initial": 1}
        opened = sent(f"{address}/sessions", asked)
        self.place, self.name = f"{address}/sessions/{opened['id']}/columns", opened["id"]
        self.answered: list[int] = []
        self.is_under_way = threading.Event()

    def run(self) -> None:
        column, data = 512, base64.b64encode(bytes(8 * 9)).decode()
        try:
            while column is not None:
                answer = sent(self.place, {"column": column, "data": data})
                self.answered.append(column)
                column = answer["next_column"]
                if len(self.answered) == 10:
                    self.is_under_way.set()
        except (OSError, HTTPException):
            return
        finally:
            self.is_under_way.set()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"policy": ("oracle",)}, "Oracle is an oracle: it uses the ground truth"),
        ({"policy": ("best=oracle",)}, "Oracle is an oracle"),
        ({"policy": ("spectral-oracle", "random")}, "is an oracle"),
        ({"policy": ("NA-ORACLE.safetensors",)}, "NaOracle is an oracle"),
        ({"policy": ("na-oracle",)}, "is fitted on data"),
        ({"policy": ("mine=fixed",)}, "is fitted on data"),
        ({"policy": ("column",)}, "cannot be built from its name: it has weights to train"),
        ({"policy": ("random", "os:system")}, "os:system is no policy"),
        ({"policy": ("random", "absent_module:Policy")}, "cannot import the policy absent_module"),
        (
            {"policy": ("random",), "reconstructor": ("zero-filled", "absent")},
            "absent is neither a file nor",
        ),
        (
            {"policy": ("knee-base-fixed",), "data": "STORE"},
            "128 columns, the slices of .* have 16",
        ),
        (
            {"policy": ("random", "knee-base-greedy"), "data": "STORE"},
            "'knee-base-greedy' was made",
        ),
    ],
)
def test_what_no_session_or_page_can_use_is_told_at_the_start(
    given: dict[str, Any], told: str, tmp_path: Path
) -> None:
    save(tmp_path / "NA-ORACLE.safetensors", NaOracle(n_cols=16, order=[3]))
    if "data" in given:
        given = {**given, "data": write_store(tmp_path)}
    elif given["policy"][0].endswith(".safetensors"):
        given = {"policy": (str(tmp_path / given["policy"][0]),)}
    with pytest.raises(KScoutError, match=told):
        serve(settings_of(**given), on_ready=lambda _: pytest.fail("it listens"))


def test_places_that_are_taken_are_told_at_the_start(tmp_path: Path) -> None:
    def told(**given: Any) -> str:
        with pytest.raises(KScoutError) as refused:
            serve(settings_of(**given))
        return str(refused.value)

    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        words = f"cannot listen at 127.0.0.1, port {port} (Address already in use); name another"
        assert told(port=port) == f"{words} --host or --port"
        assert told(mrd_port=port) == f"{words} --host or --mrd-port"
    (tmp_path / "file").touch()
    assert told(keep=tmp_path / "file").endswith("file (File exists); name another --keep")
    with locked(tmp_path / "kept"):
        assert "in use by another process" in told(keep=tmp_path / "kept")


@pytest.mark.slow
def test_a_service_at_an_address_with_colons_is_called_by_it(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no such address")
    child, told = begun(tmp_path, host="::1")
    try:
        address = json.loads(told)["http"]
        assert address.startswith("http://[::1]:") and sent(f"{address}/sessions", ASKED)["id"]
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


def test_a_store_of_several_sizes_may_hold_one_that_fits(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store", {"made": "by hand"}) as writer:
        writer.append("test", "a", blobs(1, 18, 16))
        writer.append("test", "b", blobs(1, 18, 12))
        writer.finish()
    save(tmp_path / "order.safetensors", FixedOrder(n_cols=12, order=[3]))
    policy = (str(tmp_path / "order.safetensors"),)
    sources = make_backend(tmp_path / "store", policy=policy).choices()["sources"]
    assert sorted(source["n_cols"] for source in sources) == [12, 16]


def test_sessions_take_what_the_service_was_started_with_unless_they_say_otherwise(
    tmp_path: Path,
) -> None:
    save(tmp_path / "order.safetensors", FixedOrder(n_cols=16, order=[3, 15]))
    defaults = Defaults(5, True, 2.0, fallback_maker(str(tmp_path / "order.safetensors")))
    make = advisor_maker(ZeroFilled(), policy_maker("random"), device=torch.device("cpu"))
    sessions = Sessions(make, limits=Limits(), defaults=defaults)
    own = replace(SCAN, seed=0, argmax=True, deadline_s=1.0, fallback=(9,))
    left_open, said = (sessions.find(sessions.open(one)).session.scan for one in (SCAN, own))
    assert left_open.argmax
    assert (left_open.seed, left_open.deadline_s, left_open.fallback[:4]) == (5, 2.0, (3, 15, 8, 7))
    assert said == own
    with pytest.raises(ConfigError, match="orders 16 columns, the scan has 12"):
        sessions.open(replace(SCAN, n_cols=12))
    with pytest.raises(ConfigError, match="has no order"):
        fallback_maker("random")
    sessions.shut()


def test_a_scan_of_another_size_than_the_policy_takes_is_refused_when_it_is_opened() -> None:
    policy = FixedOrder(n_cols=16, order=[3])
    make = advisor_maker(ZeroFilled(), lambda _: policy, device=torch.device("cpu"))
    sessions = Sessions(make, limits=Limits())
    with pytest.raises(ConfigError, match="made for 16 columns, the scan has 12; acquire its"):
        sessions.open(replace(SCAN, n_cols=12))
    assert len(sessions) == 0


def test_sessions_go_on_while_one_of_another_size_is_prepared() -> None:
    """On CUDA kernels may be compiled meanwhile."""
    made: list[Scan] = []

    def make(scan: Scan) -> Advisor:
        made.append(scan)
        if len(made) > 1:
            pool.submit(sessions.find, first).result(timeout=60)
        return Advisor(ZeroFilled(), CenterOut(n_cols=scan.n_cols))

    sessions = Sessions(make, limits=Limits())
    with ThreadPoolExecutor(3) as pool:
        first = sessions.open(SCAN)
        others = [pool.submit(sessions.open, replace(SCAN, budget=8)) for _ in range(2)]
        assert len({first, *(one.result() for one in others)}) == len(sessions) == 3
    assert len(made) == 2, "one advisor for both"
    sessions.shut()


def test_the_next_slice_finds_the_advisor_of_the_last_and_few_stay_without_sessions() -> None:
    """On CUDA another advisor would capture its graphs anew, slice after slice."""
    made: list[Advisor] = []

    def make(scan: Scan) -> Advisor:
        made.append(Advisor(ZeroFilled(), CenterOut(n_cols=scan.n_cols)))
        return made[-1]

    sessions = Sessions(make, limits=Limits())
    for _ in range(3):
        sessions.close(sessions.open(SCAN))
    assert len(made) == 1
    held = sessions.open(replace(SCAN, budget=8))
    for budget in range(9, 9 + MOST_SPARE):
        sessions.close(sessions.open(replace(SCAN, budget=budget)))
    is_closed = [advisor._is_closed for advisor in made]
    assert is_closed == [True] + [False] * (1 + MOST_SPARE), "the oldest that nobody asks"
    sessions.close(held)
    sessions.shut()
    assert all(advisor._is_closed for advisor in made)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kept", [["a.json"], [], None])
def test_a_service_that_is_stopped_says_what_becomes_of_its_sessions(
    number: signal.Signals,
    kept: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("kscout.apps.serve.run.serve", lambda *_, **__: signal.raise_signal(number))
    monkeypatch.chdir(tmp_path)
    for name in kept or ():
        Path("kept").mkdir()
        Path("kept", name).touch()
    keep = [] if kept is None else ["--keep", "kept"]
    given = ["--reconstructor", "zero-filled", "--policy", "random", *keep]
    assert command(["serve", *given]) == 128 + number
    told = capsys.readouterr().err
    assert ("sessions are in kept; repeat the same command" in told) == bool(kept)
    assert ("had no sessions to store in kept" in told) == (kept == [])
    assert ("sessions end with it; with --keep FOLDER" in told) == (kept is None)
