"""Time the same training batches in two checkouts of kscout that take turns.

Each checkout runs in a process of its own, which stays; one works while the other waits, so that a
busy moment falls on both. Medians over the rounds are compared, never single times.

    python benchmarks/turns.py ../kscout-old . --device cuda --rounds 12
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Compare two checkouts, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", help="The old checkout and the new one.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=128, help="Rows and columns.")
    parser.add_argument("--steps", type=int, default=16, help="Columns acquired.")
    parser.add_argument("--updates", type=int, default=60, help="Batches in a round.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--method", default="greedy")
    options = parser.parse_args()
    if len(options.checkouts) == 1:
        work(options)
        return
    settings = ["--device", options.device, "--size", str(options.size), "--method", options.method]
    settings += ["--steps", str(options.steps), "--updates", str(options.updates)]
    workers = [start(checkout, settings) for checkout in options.checkouts]
    for worker in workers:
        told(worker)
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(options.rounds):
        for number in sorted(range(len(workers)), reverse=turn % 2 == 1):
            worker = workers[number]
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
            times[number].append(1e3 * float(told(worker)) / options.updates)
    medians = [statistics.median(own) for own in times]
    answer = {**vars(options), "ms_per_batch": medians, "new_over_old": medians[-1] / medians[0]}
    print(json.dumps(answer))
    for worker in workers:
        worker.communicate()


def start(checkout: str, settings: list[str]) -> "subprocess.Popen[str]":
    """Start the process of one checkout."""
    environment = {**os.environ, "PYTHONPATH": str(Path(checkout).resolve() / "src")}
    command = [sys.executable, __file__, checkout, *settings]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def told(worker: "subprocess.Popen[str]") -> str:
    """Return the next line that a process prints."""
    assert worker.stdout is not None
    line = worker.stdout.readline().strip()
    if not line:
        sys.exit("a checkout failed; its message stands above")
    return line


def work(options: argparse.Namespace) -> None:
    """Be the process of one checkout: build the objects of a training, then run when asked."""
    import torch

    from kscout.bench.engine import Engine, TrainingBatch, Workload

    device = torch.device(options.device)
    engine = Engine.build(options.size, 16, device)
    workload = Workload(n_slices=16, horizon=options.steps, q=8, method=options.method)
    with engine.ready_convolutions():
        batch = TrainingBatch(engine, workload, n_updates=options.updates)
        batch.updates()
        print("ready", flush=True)
        for _ in sys.stdin:
            begun = time.perf_counter()
            batch.updates()
            if device.type == "cuda":
                torch.cuda.synchronize()
            print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main()
