"""The command listens, tells where, and ends without losing a session."""

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from test_app import ASKED, column_of
from websockets.sync.client import connect

from fuzz.forks import start
from kscout.acquisition import Scan
from kscout.errors import ConfigError
from kscout.policies.center_out import CenterOut
from kscout.serve.mrd_messages import close_message
from kscout.serve.run import policy_maker, serve


def sent(address: str, message: Any) -> Any:
    request = urllib.request.Request(address, json.dumps(message).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


@pytest.mark.slow
def test_a_service_that_is_told_to_end_keeps_its_sessions(tmp_path: Path) -> None:
    ready, tell = os.pipe()

    def work() -> int:
        kept = tmp_path / "kept"
        on_ready = lambda line: os.write(tell, f"{line}\n".encode())  # noqa: E731
        serve("zero-filled", "center-out", device="cpu", keep=kept, on_ready=on_ready)
        return 0

    child = start(work, tmp_path, tmp_path / "log")
    os.close(tell)
    try:
        with os.fdopen(ready) as told:
            line = told.readline()
        assert line, (tmp_path / "log").read_text()
        address, mrd_port = json.loads(line)["http"], json.loads(line)["mrd_port"]
        assert json.loads(line)["mrd"] == f"127.0.0.1:{mrd_port}"
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
    finally:
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, (tmp_path / "log").read_text()
    assert [file.stem for file in (tmp_path / "kept").iterdir()] == [name]


def test_a_named_policy_is_built_for_each_scan() -> None:
    make = policy_maker("center-out")
    for n_cols in (16, 31):
        policy = make(Scan(n_rows=5, n_cols=n_cols, budget=7, initial=3))
        assert isinstance(policy, CenterOut) and len(policy.scores) == n_cols
    with pytest.raises(ConfigError, match="cannot be built"):
        policy_maker("fixed")(Scan(n_rows=5, n_cols=16, budget=7, initial=3))
