"""How long decisions take while many sessions ask at once, over loopback, and whether one is lost.

    python benchmarks/load.py                                  # on this machine: load_cpu.json
    python benchmarks/load.py --device cuda --record load_h200.json --over core mrd
    python benchmarks/tables.py                                # the table of docs/serve.md

A client sends a column, waits for the answer, and sends the next one at once; a decision takes from
sending to having read the answer. Columns go over MRD streams (`mrd`), a WebSocket (`websocket`,
which needs kscout[serve]), or by a call in one process (`core`). The policy is a `column` network
of 128 x 128, untrained: what it chooses takes as long as what a trained one does. Every answer is
checked: a column that is asked for twice, or a count that is not that of what was sent, is lost.
"""

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import platform
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kscout.acquisition import Scan
from kscout.files import write_json
from kscout.policies.column import ColumnPolicy
from kscout.serve.counts import reply
from kscout.serve.desk import Desk, Limits, advisor_maker
from kscout.serve.mrd import MrdServer
from kscout.serve.mrd_messages import (
    ACQUISITION_HEAD,
    Id,
    acquisition_message,
    close_message,
    read_message,
    text_message,
)

HERE = Path(__file__).parent
SIZE, N_INITIAL, BUDGET = 128, 16, 117
"""Of a slice: 100 decisions that follow a column; the one after the start is not timed."""
N_TIMED = BUDGET - N_INITIAL - 1
LIMITS = Limits(n_sessions=4096, n_values_in_all=2**31)
HEADER = (
    "<ismrmrdHeader><encoding><encodedSpace>"
    f"<matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize></encodedSpace>"
    f"<reconSpace><matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize></reconSpace>"
    "<trajectory>cartesian</trajectory></encoding></ismrmrdHeader>"
)
Ask = Callable[[list[int]], Awaitable[dict[str, Any]]]
"""Sends columns, and returns the answer."""


Talk = Callable[[dict[str, Any], int, list[float]], Awaitable[int]]
"""Acquires slices over one connection, adds the time of every decision; returns what was lost."""


def kspace() -> np.ndarray:
    """Return what is measured of every slice."""
    parts = np.random.default_rng(0).normal(size=(2, SIZE, SIZE)).astype(np.float32)
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


KSPACE = kspace()
IS_WARMING = ContextVar("IS_WARMING", default=False)


async def acquire(ask: Ask, start: list[int], times_s: list[float]) -> int:
    """Acquire a slice, or a few of its columns to warm up; return how many decisions were lost."""
    measured, n_lost = list(start), 0
    answer = await ask(start)
    while not answer["done"]:
        if IS_WARMING.get() and len(measured) >= N_INITIAL + 5:
            return 0
        column = answer["next_column"]
        n_lost += column in measured or answer["n_measured"] != len(measured)
        begin = time.perf_counter()
        answer = await ask([column])
        if not answer["done"]:
            times_s.append(time.perf_counter() - begin)
        measured.append(column)
    return n_lost + (len(measured) != BUDGET)


async def over_mrd(address: dict[str, Any], n_slices: int, times_s: list[float]) -> int:
    """Acquire slices over one MRD stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", address["mrd_port"])

    async def text() -> dict[str, Any]:
        while (message := await read_message(reader.readexactly, 2**25)).id is not Id.TEXT:
            pass
        return json.loads(message.text)

    config = {"budget": BUDGET, "n_initial": N_INITIAL}
    writer.write(text_message(Id.CONFIG_TEXT, json.dumps(config)) + text_message(Id.HEADER, HEADER))
    start, n_lost = (await text())["columns"], 0
    for number in range(n_slices):

        async def ask(columns: list[int], number: int = number) -> dict[str, Any]:
            for column in columns:
                head = np.zeros((), dtype=ACQUISITION_HEAD)
                head["idx"]["kspace_encode_step_1"], head["idx"]["slice"] = column, number
                writer.write(acquisition_message(head, KSPACE[None, :, column]))
            return await text()

        n_lost += await acquire(ask, start, times_s)
    writer.write(close_message())
    writer.close()
    return n_lost


async def over_websocket(address: dict[str, Any], n_slices: int, times_s: list[float]) -> int:
    """Acquire slices over one WebSocket each."""
    from websockets.asyncio.client import ClientConnection, connect

    n_lost, asked = 0, {"n_rows": SIZE, "n_cols": SIZE, "budget": BUDGET, "n_initial": N_INITIAL}
    for _ in range(n_slices):
        request = urllib.request.Request(f"{address['http']}/sessions", json.dumps(asked).encode())
        request.add_header("content-type", "application/json")
        opened = await asyncio.to_thread(lambda r=request: json.load(urllib.request.urlopen(r)))
        place = address["http"].replace("http", "ws", 1)
        async with connect(f"{place}/sessions/{opened['id']}/stream", proxy=None) as socket:

            async def ask(columns: list[int], socket: ClientConnection = socket) -> dict[str, Any]:
                raw = {column: np.ascontiguousarray(KSPACE[:, column]) for column in columns}
                sent = [
                    {"column": column, "data": base64.b64encode(values.tobytes()).decode()}
                    for column, values in raw.items()
                ]
                await socket.send(json.dumps(sent))
                return json.loads(await socket.recv())

            n_lost += await acquire(ask, opened["columns"], times_s)
    return n_lost


def in_process(desk: Desk) -> Talk:
    """Return what acquires slices by calls; every client has a thread, as in the service."""
    pool = ThreadPoolExecutor(256)

    def step(name: str, columns: list[int]) -> dict[str, Any]:
        place = desk.find(name)
        with place.lock:
            place.session.measure(columns, KSPACE.T[columns][:, None])
            return reply(place.session, desk.counts)

    async def over_core(_: dict[str, Any], n_slices: int, times_s: list[float]) -> int:
        n_lost, loop = 0, asyncio.get_running_loop()
        for _ in range(n_slices):
            scan = Scan(n_rows=SIZE, n_cols=SIZE, budget=BUDGET, initial=N_INITIAL)
            name = desk.open(scan)

            async def ask(columns: list[int], name: str = name) -> dict[str, Any]:
                return await loop.run_in_executor(pool, step, name, columns)

            n_lost += await acquire(ask, list(scan.start), times_s)
            desk.close(name)
        return n_lost

    return over_core


def desk_of(reconstructor: str, weights: Path, device: str) -> Desk:
    """Return a desk with a reconstruction and a policy."""
    from kscout import policies, reconstruction

    policy = policies.load(weights)
    network = reconstruction.load(reconstructor)
    return Desk(
        advisor_maker(network, lambda _: policy, device=torch.device(device)), limits=LIMITS
    )


def serve_in_child(
    over: str, reconstructor: str, weights: Path, device: str, to: Connection
) -> None:
    """Serve until the parent ends this process; tell it where."""
    if over == "websocket":
        from kscout.serve.run import serve

        tell = lambda line: to.send(json.loads(line))  # noqa: E731
        serve(reconstructor, str(weights), device=device, limits=LIMITS, on_ready=tell)
        return
    import socket

    async def live() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
            async with MrdServer(desk_of(reconstructor, weights, device), listening):
                to.send({"mrd_port": listening.getsockname()[1]})
                await asyncio.Event().wait()

    asyncio.run(live())


async def measured(
    talk: Talk, address: dict[str, Any], n_sessions: int, n_slices: int, *, warms: bool = False
) -> tuple[np.ndarray, int, float]:
    """Let clients acquire slices at once; return the time of every decision, and what was lost."""
    IS_WARMING.set(warms)
    times_s: list[list[float]] = [[] for _ in range(n_sessions)]
    begin = time.perf_counter()
    lost = await asyncio.gather(*(talk(address, n_slices, own) for own in times_s))
    took_s = time.perf_counter() - begin
    return np.concatenate(times_s), sum(lost), took_s


def figures(times_s: np.ndarray, n_lost: int, took_s: float) -> dict[str, Any]:
    """Return what is written down of one round."""
    p50, p99 = (round(1e3 * float(np.percentile(times_s, q)), 2) for q in (50, 99))
    per_s = round(len(times_s) / took_s, 1)
    return {
        "n_decisions": len(times_s),
        "p50_ms": p50,
        "p99_ms": p99,
        "per_s": per_s,
        "lost": n_lost,
    }


def rounds(over: str, reconstructor: str, wanted: argparse.Namespace, weights: Path) -> list[Any]:
    """Measure all numbers of sessions over one way, with one reconstruction."""
    child, address = None, {}
    if over == "core":
        talk = in_process(desk_of(reconstructor, weights, wanted.device))
    else:
        talk = {"mrd": over_mrd, "websocket": over_websocket}[over]
        here, there = multiprocessing.Pipe()
        given = (over, reconstructor, weights, wanted.device, there)
        child = multiprocessing.get_context("spawn").Process(target=serve_in_child, args=given)
        child.start()
        address = here.recv()
    try:
        found = []
        for n_sessions in wanted.sessions:
            n_slices = max(1, round(wanted.decisions / n_sessions / N_TIMED))
            asyncio.run(measured(talk, address, n_sessions, 1, warms=True))
            row = figures(*asyncio.run(measured(talk, address, n_sessions, n_slices)))
            found.append(
                {"over": over, "reconstruction": reconstructor, "n_sessions": n_sessions} | row
            )
            print(json.dumps(found[-1]), flush=True)
        return found
    finally:
        if child is not None:
            child.terminate()
            child.join()


def machine(device: str) -> str:
    """Return where it ran, in words."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__.partition('+')[0]}"
    cores = len(os.sched_getaffinity(0))
    return f"{cores} {platform.machine()} cores, torch {torch.__version__.partition('+')[0]}"


def table(folder: Path = HERE) -> str:
    """Return the table of docs/serve.md, from all records that are there."""
    from tables import markdown

    lines = []
    for path in sorted(folder.glob("load_*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for row in record["rows"]:
            numbers = [f"{row[name]:,}" for name in ("n_sessions", "n_decisions", "lost")]
            times = [f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms")]
            first = [record["machine"], f"`{row['over']}`", f"`{row['reconstruction']}`"]
            lines.append([*first, numbers[0], *times, f"{row['per_s']:.0f}", *numbers[1:]])
    head = ["machine", "over", "reconstruction", "sessions", "p50, ms", "p99, ms"]
    head += ["decisions per second", "decisions", "lost"]
    return markdown(head, lines) if lines else "Not recorded yet.\n"


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--over", nargs="+", default=["mrd", "websocket"])
    parser.add_argument("--reconstructor", nargs="+", default=["zero-filled", "knee-unet"])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 100])
    parser.add_argument("--decisions", type=int, default=10_000, help="per number of sessions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path, default=HERE / "load_cpu.json")
    wanted = parser.parse_args()
    from kscout.policies import save

    torch.manual_seed(0)
    policy = ColumnPolicy(n_cols=SIZE, n_initial=N_INITIAL, horizon=BUDGET - N_INITIAL)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "column.safetensors"
        save(weights, policy)
        rows = [
            row
            for reconstructor in wanted.reconstructor
            for over in wanted.over
            for row in rounds(over, reconstructor, wanted, weights)
        ]
    path = wanted.record if wanted.record.parent != Path() else HERE / wanted.record
    write_json(path, {"machine": machine(wanted.device), "rows": rows})


if __name__ == "__main__":
    main()
