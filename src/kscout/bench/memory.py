"""Peak memory of a non-greedy batch against its horizon: it must not grow with a kept graph."""

import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from kscout.bench.engine import Engine
from kscout.training.convolution import can_compile

HORIZONS = (4, 16, 28)
"""Steps; the paper's are 16 and 28."""


def measure_memory(
    size: int, n_slices: int, q: int, device: torch.device, *, horizons: Sequence[int] = HORIZONS
) -> list[dict[str, int]]:
    """Return the peak for each horizon; on a CPU each is a process of its own."""
    records = []
    for horizon in horizons:
        arguments = (size, n_slices, q, horizon, str(device))
        if device.type == "cuda":
            peak = peak_bytes(*arguments)
        else:
            # Peaks of a process never fall, so one process cannot show three of them.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                peak = pool.submit(peak_bytes, *arguments).result()
        records.append(
            {"size": size, "n_slices": n_slices, "q": q, "horizon": horizon, "peak_bytes": peak}
        )
    return records


def peak_bytes(size: int, n_slices: int, q: int, horizon: int, device: str) -> int:
    """Return what a non-greedy batch takes at its peak, beyond what stood before it."""
    place = torch.device(device)
    # Measuring backends takes more memory than the batch, and processes might choose differently.
    backend = "compiled" if place.type == "cpu" and can_compile() else "onednn-last"
    engine = Engine.build(size, n_slices, place, backend=backend)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        engine.non_greedy(horizon, q)
        return torch.cuda.max_memory_allocated(place) - before
    before = _peak_of_process()
    engine.non_greedy(horizon, q)
    return _peak_of_process() - before


def _peak_of_process() -> int:
    """Return the largest resident size so far, in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        in_bytes = sys.platform == "darwin"
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if in_bytes else 1024)
    # Linux counts a parent's size into `ru_maxrss` of a child, but not into this.
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
