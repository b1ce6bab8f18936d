"""How long decisions take while many sessions ask at once, over loopback, and whether one is lost.

    python lab/serve_load.py
    python lab/serve_load.py --device cuda --over core mrd

A client sends a column, waits for the answer, and sends the next one at once; a decision takes from
sending to having read the answer. Columns go by a call in one process (`core`), over MRD streams
(`mrd`), or a WebSocket (`websocket`). The policy is a `column` network of 128 x 128, untrained: it
takes as long as a trained one. Every number of sessions asks for `--seconds`; then 10,000 decisions
by a fixed order, which take hardly any time, are asked for by as many sessions as possible. Every
answer is checked: a column that is asked for twice, or a count that is not that of what was sent,
is lost. With `--interrupted 0.05` one WebSocket message in twenty comes over a connection that its
client closes before the answer; the session has to have the columns. A row is printed when it is
measured; all of them take four minutes on two idle cores.
"""

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import random
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kscout.acquisition import Scan
from kscout.apps.serve.run import settle
from kscout.apps.serve.sessions import Limits, Sessions, advisor_maker, reply
from kscout.policies import save
from kscout.policies.column import ColumnPolicy
from kscout.policies.fixed import CenterOut

SIZE, N_INITIAL, BUDGET = 128, 16, 117
"""Of a slice: 100 decisions that follow a column; the one after the start is not timed."""
LIMITS = Limits(n_sessions=4096, n_values_in_all=2**31)
WARM_S = {"cpu": 2.0, "cuda": 10.0}
"""Before a round; on CUDA graphs of several sizes are captured meanwhile."""
SILENT_S = 120.0
"""A service that is silent for so long is given up."""
HEADER = (
    "<ismrmrdHeader><encoding><encodedSpace>"
    f"<matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize></encodedSpace>"
    f"<reconSpace><matrixSize><x>{SIZE}</x><y>{SIZE}</y><z>1</z></matrixSize></reconSpace>"
    "<trajectory>cartesian</trajectory></encoding></ismrmrdHeader>"
)
Ask = Callable[[list[int]], Awaitable[dict[str, Any]]]
"""Sends columns, and returns the answer."""


def kspace() -> np.ndarray:
    """Return what is measured of every slice."""
    parts = np.random.default_rng(0).normal(size=(2, SIZE, SIZE)).astype(np.float32)
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


KSPACE = kspace()
ENCODED = [base64.b64encode(column.tobytes()).decode() for column in np.ascontiguousarray(KSPACE.T)]


@dataclass
class Tally:
    """What the clients of a round found, and when they are to end."""

    most_s: float = float("inf")
    most: int = 10**9
    """Decisions."""
    times_s: list[float] = field(default_factory=list)
    n_lost: int = 0
    interrupted: float = 0.0
    """Fraction of WebSocket messages whose client does not wait for the answer."""
    begin: float | None = None
    """When the first decision that is timed was asked for."""

    @property
    def is_over(self) -> bool:
        if not self.times_s or self.begin is None:
            return False
        return len(self.times_s) >= self.most or time.perf_counter() - self.begin > self.most_s

    def figures(self) -> dict[str, Any]:
        """Return what is written down."""
        assert self.begin is not None
        took_s = time.perf_counter() - self.begin
        p50, p99 = (round(1e3 * float(np.percentile(self.times_s, q)), 2) for q in (50, 99))
        n = len(self.times_s)
        told = {"n_decisions": n, "p50_ms": p50, "p99_ms": p99, "per_s": round(n / took_s, 1)}
        return {**told, "lost": self.n_lost}


Talk = Callable[[dict[str, Any], Tally], Awaitable[None]]
"""Acquires slices over one connection until a tally is over."""


async def acquire(ask: Ask, start: list[int], tally: Tally) -> None:
    """Acquire a slice, or as much of it as there is time for."""
    measured, answer = list(start), await ask(start)
    while not answer["done"] and not tally.is_over:
        column = answer["next_column"]
        tally.n_lost += column in measured or answer["n_measured"] != len(measured)
        begin = time.perf_counter()
        tally.begin = tally.begin or begin
        answer = await ask([column])
        if not answer["done"]:
            tally.times_s.append(time.perf_counter() - begin)
        measured.append(column)
    tally.n_lost += answer["done"] and len(measured) != BUDGET


async def over_mrd(address: dict[str, Any], tally: Tally) -> None:
    """Acquire slices over one MRD stream."""
    from kscout.apps.serve import mrd_messages as mrd

    reader, writer = await asyncio.open_connection("127.0.0.1", address["mrd_port"])

    async def text() -> dict[str, Any]:
        while (message := await mrd.read_message(reader.readexactly, 2**25)).id is not mrd.Id.TEXT:
            pass
        return json.loads(message.text)

    config = json.dumps({"budget": BUDGET, "n_initial": N_INITIAL})
    writer.write(mrd.text_message(mrd.Id.CONFIG_TEXT, config))
    writer.write(mrd.text_message(mrd.Id.HEADER, HEADER))
    start, number = (await text())["columns"], -1
    while not tally.is_over:
        number += 1

        async def ask(columns: list[int], number: int = number) -> dict[str, Any]:
            for column in columns:
                head = np.zeros((), dtype=mrd.ACQUISITION_HEAD)
                head["idx"]["kspace_encode_step_1"], head["idx"]["slice"] = column, number
                writer.write(mrd.acquisition_message(head, KSPACE[None, :, column]))
            return await text()

        await acquire(ask, start, tally)
    writer.write(mrd.close_message())
    writer.close()


async def over_websocket(address: dict[str, Any], tally: Tally) -> None:
    """Acquire slices over one WebSocket each."""
    from websockets.asyncio.client import connect

    asked = {"n_rows": SIZE, "n_cols": SIZE, "budget": BUDGET, "n_initial": N_INITIAL}
    draw = random.Random(0)
    while not tally.is_over:
        opened = await loaded(f"{address['http']}/sessions", asked)
        session = f"{address['http']}/sessions/{opened['id']}"
        stream = f"{session.replace('http', 'ws', 1)}/stream"
        async with connect(stream, proxy=None) as socket:

            async def ask(
                columns: list[int], session: str = session, stream: str = stream
            ) -> dict[str, Any]:
                sent = json.dumps([{"column": x, "data": ENCODED[x]} for x in columns])
                if draw.random() >= tally.interrupted:
                    await socket.send(sent)
                    return json.loads(await socket.recv())
                async with connect(stream, proxy=None) as other:
                    await other.send(sent)
                # The columns may be measured after the connection was closed.
                while columns[-1] not in (state := await loaded(session))["order"]:
                    await asyncio.sleep(0.01)
                return state

            await acquire(ask, opened["columns"], tally)


async def loaded(address: str, message: object = None) -> Any:
    """Return the JSON at an address, or the answer to a message."""
    body = None if message is None else json.dumps(message).encode()
    request = urllib.request.Request(address, body, {"content-type": "application/json"})
    return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(request)))


def in_process(sessions: Sessions) -> Talk:
    """Return what acquires slices by calls; every client has a thread, as in the service."""
    pool = ThreadPoolExecutor(256)

    def step(name: str, columns: list[int]) -> dict[str, Any]:
        handle = sessions.find(name)
        with handle.lock:
            handle.session.measure(columns, KSPACE.T[columns][:, None])
            return reply(handle.session, sessions.counts)

    async def over_core(_: dict[str, Any], tally: Tally) -> None:
        loop = asyncio.get_running_loop()
        while not tally.is_over:
            scan = Scan(n_rows=SIZE, n_cols=SIZE, budget=BUDGET, initial=N_INITIAL)
            name = sessions.open(scan)

            async def ask(columns: list[int], name: str = name) -> dict[str, Any]:
                return await loop.run_in_executor(pool, step, name, columns)

            await acquire(ask, list(scan.start), tally)
            sessions.close(name)

    return over_core


def sessions_of(reconstructor: str, weights: Path, device: str) -> Sessions:
    """Return sessions that use a reconstruction and a policy."""
    from kscout import policies, reconstruction

    policy = policies.load(weights)
    network = reconstruction.load(reconstructor)
    settle()
    return Sessions(
        advisor_maker(network, lambda _: policy, device=torch.device(device)), limits=LIMITS
    )


def serve_in_child(
    over: str, reconstructor: str, weights: Path, device: str, to: Connection
) -> None:
    """Serve until the parent ends this process; tell it where."""
    if over == "websocket":
        from kscout.apps.serve.run import serve
        from kscout.apps.serve.service import ServeSettings

        tell = lambda line: to.send(json.loads(line))  # noqa: E731
        settings = ServeSettings(
            reconstructor=(reconstructor,), policy=(str(weights),), device=device
        )
        serve(settings, limits=LIMITS, on_ready=tell)
        return
    import socket

    from kscout.apps.serve.mrd import MrdServer

    async def live() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
            async with MrdServer(sessions_of(reconstructor, weights, device), listening):
                to.send({"mrd_port": listening.getsockname()[1]})
                await asyncio.Event().wait()

    asyncio.run(live())


@contextmanager
def service(
    over: str, reconstructor: str, weights: Path, device: str
) -> Iterator[tuple[Talk, dict[str, Any]]]:
    """Serve in this process or in a child; give what talks to it, and its address."""
    if over == "core":
        sessions = sessions_of(reconstructor, weights, device)
        yield in_process(sessions), {}
        sessions.shut()
        return
    here, there = multiprocessing.Pipe()
    given = (over, reconstructor, weights, device, there)
    child = multiprocessing.get_context("spawn").Process(target=serve_in_child, args=given)
    child.start()
    there.close()
    try:
        if not here.poll(SILENT_S):
            raise SystemExit(f"the service over {over} did not start within {SILENT_S:g} s")
        try:
            address = here.recv()
        except EOFError:
            raise SystemExit(f"the service over {over} did not start; see above") from None
        yield {"mrd": over_mrd, "websocket": over_websocket}[over], address
    finally:
        child.terminate()
        child.join()


async def measured(talk: Talk, address: dict[str, Any], n_sessions: int, tally: Tally) -> Tally:
    """Let clients acquire slices at once, each over a connection of its own."""
    limit_s = None if tally.most_s == float("inf") else tally.most_s + SILENT_S
    async with asyncio.timeout(limit_s):
        await asyncio.gather(*(talk(address, tally) for _ in range(n_sessions)))
    return tally


def rounds(
    over: str, reconstructor: str, weights: Path, wanted: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Measure all numbers of sessions; of a fixed order the largest one until all are counted."""
    is_fixed = weights.stem == "center-out"
    with service(over, reconstructor, weights, wanted.device) as (talk, address):
        for n_sessions in [max(wanted.sessions)] if is_fixed else wanted.sessions:
            most = -(-wanted.decisions // len(wanted.over))
            warm_s = min(wanted.seconds, WARM_S[wanted.device])
            asyncio.run(measured(talk, address, n_sessions, Tally(warm_s)))
            tally = Tally(most=most) if is_fixed else Tally(wanted.seconds)
            tally.interrupted = wanted.interrupted
            asyncio.run(measured(talk, address, n_sessions, tally))
            yield {"policy": weights.stem, "n_sessions": n_sessions, **tally.figures()}


def main() -> None:
    """Measure, and print a line of JSON per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--over", nargs="+", default=["core", "mrd", "websocket"])
    parser.add_argument("--reconstructor", nargs="+", default=["zero-filled", "knee-unet"])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 100])
    parser.add_argument("--seconds", type=float, default=8.0, help="per number of sessions")
    parser.add_argument(
        "--decisions", type=int, default=10_000, help="by a fixed order; 0 for none"
    )
    parser.add_argument(
        "--interrupted", type=float, default=0.0, help="fraction of WebSocket messages"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    wanted = parser.parse_args()
    print(json.dumps({"busy_before": round(os.getloadavg()[0], 2)}), flush=True)
    plan = [(over, x, "column") for x in wanted.reconstructor for over in wanted.over]
    if wanted.decisions:
        plan += [(over, "zero-filled", "center-out") for over in wanted.over]
    torch.manual_seed(0)
    sizes = {"n_cols": SIZE, "n_initial": N_INITIAL, "horizon": BUDGET - N_INITIAL}
    policies = {"column": ColumnPolicy(**sizes), "center-out": CenterOut(n_cols=SIZE)}
    with tempfile.TemporaryDirectory() as folder:
        for over, reconstructor, policy in plan:
            weights = Path(folder) / f"{policy}.safetensors"
            save(weights, policies[policy])
            for row in rounds(over, reconstructor, weights, wanted):
                print(
                    json.dumps({"over": over, "reconstruction": reconstructor, **row}), flush=True
                )


if __name__ == "__main__":
    main()
