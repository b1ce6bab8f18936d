"""Whether a service loses a decision or memory: clients disconnect at random, and it restarts once.

    python tests/serve/soak.py
    python tests/serve/soak.py --decisions 1000

Three of four clients use HTTP, one MRD streams. About one decision in twenty is interrupted: its
client closes the connection after half of the message, or without reading the answer, then asks
for the state of its session. Columns that were acknowledged have to
be there, in their order, and an interrupted one at most once. After 30 % of the decisions the
service is stopped by SIGTERM and started again with the same folder. Memory, file handles and
threads of the second process are compared between its first quarter and its end.
"""

import argparse
import asyncio
import base64
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, final

import numpy as np

from kscout.apps.serve import mrd_messages as mrd
from kscout.policies import save
from kscout.policies.column import ColumnPolicy

SIZE, N_INITIAL, BUDGET = 64, 4, 60
SESSION = {"n_rows": SIZE, "n_cols": SIZE, "budget": BUDGET, "n_initial": N_INITIAL}
DATA = base64.b64encode(np.ones(SIZE, np.complex64).tobytes()).decode()
INTERRUPTED = 0.05
"""Fraction of decisions."""
WAIT_S = 60.0
_LOST_CONNECTION = (OSError, HTTPException)


def message_of(columns: list[int]) -> bytes:
    """Return the JSON for measured columns."""
    return json.dumps([{"column": column, "data": DATA} for column in columns]).encode()


@final
class Service:
    """A service in a process of its own, at ports that stay the same after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sizes = {"n_cols": SIZE, "n_initial": N_INITIAL, "horizon": BUDGET - N_INITIAL}
        save(folder / "policy.safetensors", ColumnPolicy(**sizes))
        self.port = self.mrd_port = 0
        self.start()

    def start(self) -> None:
        """Start the service and wait until it listens."""
        given = {"--policy": self.folder / "policy.safetensors", "--keep": self.folder / "kept"}
        given |= {"--port": self.port, "--mrd-port": self.mrd_port, "--device": "cpu"}
        words = [str(word) for pair in given.items() for word in pair]
        command = [sys.executable, "-m", "kscout", "serve", "--reconstructor", "zero-filled"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        places = json.loads(self.process.stdout.readline())
        self.port, self.mrd_port = places["port"], places["mrd_port"]

    def stop(self) -> int:
        """Stop the service by SIGTERM, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def use(self) -> dict[str, float]:
        """Return what the process holds."""
        place = Path("/proc", str(self.process.pid))
        lines = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        return {
            "memory_mb": round(int(lines["VmRSS"].split()[0]) / 1024, 1),
            "handles": len(list((place / "fd").iterdir())),
            "threads": int(lines["Threads"]),
        }


@dataclass
class Tally:
    """Decisions of all clients."""

    wanted: int
    n_decisions: int = 0
    n_interrupted: int = 0
    n_reconnected: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.n_decisions >= self.wanted or bool(self.lost)


@final
class Http:
    """Requests over one connection, which is opened again if it was closed."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.connection = HTTPConnection("127.0.0.1", service.port, timeout=WAIT_S)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Return status and answer of a request."""
        try:
            self.connection.request(method, path, body, {"content-type": "application/json"})
            reply = self.connection.getresponse()
            raw = reply.read()
            return reply.status, json.loads(raw) if raw else None
        except _LOST_CONNECTION:
            self.connection.close()
            raise

    def send(self, name: str, columns: list[int]) -> dict[str, Any]:
        status, answer = self.ask("POST", f"/sessions/{name}/columns", message_of(columns))
        if status == 503:
            raise ConnectionError(answer)
        return {"status": status, **answer}

    def interrupt(self, name: str, columns: list[int], *, is_complete: bool) -> None:
        raw = message_of(columns)
        head = f"POST /sessions/{name}/columns HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.service.port), WAIT_S) as connection:
            connection.sendall(head.encode() + raw[: None if is_complete else len(raw) // 2])


def acquire(control: Http, tally: Tally, draw: random.Random) -> None:
    """Acquire slices over connections that break, until a tally is over."""
    while not tally.is_over:
        opened = again(lambda: control.ask("POST", "/sessions", json.dumps(SESSION).encode()))[1]
        name, measured, columns = opened["id"], [], opened["columns"]
        while columns and not tally.is_over:
            columns = step(control, name, measured, columns, tally, draw)
        again(lambda name=name: control.ask("DELETE", f"/sessions/{name}"))


def step(
    control: Http,
    name: str,
    measured: list[int],
    columns: list[int],
    tally: Tally,
    draw: random.Random,
) -> list[int]:
    """Send columns, interrupted or not; check the answer, and return what to measure next."""
    answer: dict[str, Any] = {}
    with suppress(*_LOST_CONNECTION):
        if draw.random() < INTERRUPTED:
            tally.n_interrupted += 1
            control.interrupt(name, columns, is_complete=draw.random() < 0.5)
        else:
            answer = control.send(name, columns)
    if "next_columns" not in answer:
        # The connection broke, or the columns of an interrupted message came in meanwhile.
        tally.n_reconnected += 1
        status, answer = again(lambda: control.ask("GET", f"/sessions/{name}"))
        if status != 200 or answer["order"] not in (measured, [*measured, *columns]):
            tally.lost.append(f"{name}: {answer} after {measured} and {columns}")
            return []
    else:
        tally.n_decisions += 1
    if answer["n_measured"] > len(measured):
        measured += columns
    if answer["n_measured"] != len(measured) or set(answer["next_columns"]) & set(measured):
        tally.lost.append(f"{name}: {answer} after {measured}")
    return answer["next_columns"]


def again(ask: Callable[[], tuple[int, Any]]) -> tuple[int, Any]:
    """Return the answer to a request that is repeated while the service restarts."""
    end = time.monotonic() + WAIT_S
    while True:
        with suppress(*_LOST_CONNECTION):
            status, answer = ask()
            if status != 503:
                return status, answer
        if time.monotonic() > end:
            raise SystemExit("the service did not come back")
        time.sleep(0.05)


HEADER = (
    "<ismrmrdHeader><encoding><encodedSpace>"
    f"<matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize></encodedSpace>"
    f"<reconSpace><matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize></reconSpace>"
    "<trajectory>cartesian</trajectory></encoding></ismrmrdHeader>"
)


async def acquire_over_mrd(service: Service, tally: Tally, draw: random.Random) -> None:
    """Acquire one slice per stream, whose end closes the session; some streams break."""
    while not tally.is_over:
        try:
            await _stream(service, tally, draw)
        except (OSError, EOFError):
            tally.n_reconnected += 1
            await asyncio.sleep(0.05)


async def _stream(service: Service, tally: Tally, draw: random.Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.mrd_port)

    async def text() -> dict[str, Any]:
        while True:
            async with asyncio.timeout(WAIT_S):
                message = await mrd.read_message(reader.readexactly, 2**25)
            if message.id is mrd.Id.CLOSE:
                raise EOFError
            if message.id is mrd.Id.TEXT:
                return json.loads(message.text)

    try:
        config = json.dumps({"budget": BUDGET, "n_initial": N_INITIAL})
        writer.write(mrd.text_message(mrd.Id.CONFIG_TEXT, config))
        writer.write(mrd.text_message(mrd.Id.HEADER, HEADER))
        measured, columns = [], (await text())["columns"]
        while columns and not tally.is_over:
            for column in columns:
                head = np.zeros((), dtype=mrd.ACQUISITION_HEAD)
                head["idx"]["kspace_encode_step_1"] = column
                raw = mrd.acquisition_message(head, np.ones((1, SIZE), np.complex64))
                if draw.random() < INTERRUPTED / 4:
                    tally.n_interrupted += 1
                    writer.write(raw[: len(raw) // 2])
                    return
                writer.write(raw)
            answer = await text()
            tally.n_decisions += 1
            measured += columns
            columns = answer["next_columns"]
            if answer["order"] != measured or set(columns) & set(measured):
                tally.lost.append(f"{answer} after {measured}")
        writer.write(mrd.close_message())
    finally:
        writer.close()


def soak(folder: Path, n_clients: int, n_decisions: int, seed: int = 0) -> dict[str, Any]:
    """Run clients against a service that restarts once, and return what was found."""
    service, tally = Service(folder), Tally(n_decisions)
    draws = [random.Random(f"{seed} {number}") for number in range(n_clients)]

    def client(number: int) -> None:
        draw = draws[number]
        if number % 4 == 3:
            asyncio.run(acquire_over_mrd(service, tally, draw))
            return
        acquire(Http(service), tally, draw)

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(n_clients)]
    for thread in threads:
        thread.start()

    def wait(share: float) -> None:
        while tally.n_decisions < share * n_decisions and any(x.is_alive() for x in threads):
            time.sleep(0.05)

    try:
        wait(0.3)
        code = service.stop()
        service.start()
        wait(0.475)
        first = service.use()
        wait(1)
        last = service.use()
        for thread in threads:
            thread.join(WAIT_S)
        health = again(lambda: Http(service).ask("GET", "/health"))[1]
    finally:
        service.process.kill()
    return {
        **{"decisions": tally.n_decisions, "lost": tally.lost, "exit_of_first": code},
        **{"interrupted": tally.n_interrupted, "reconnected": tally.n_reconnected},
        **{"after_quarter": first, "at_end": last, "sessions_left": health["n_sessions"]},
        "unfinished": sum(thread.is_alive() for thread in threads),
        "log": (folder / "log").read_text(errors="replace").splitlines()[-5:],
    }


def main() -> int:
    """Print what was found as JSON; return 1 if a decision was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = soak(Path(folder), wanted.clients, wanted.decisions, wanted.seed)
    print(json.dumps(figures, indent=1))
    return int(bool(figures["lost"] or figures["unfinished"]))


if __name__ == "__main__":
    sys.exit(main())
