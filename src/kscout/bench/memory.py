"""Peak memory of a batch: of the device, or on a CPU of a process that does nothing else."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

from kscout.bench.engine import Engine, TrainingBatch, Workload, release
from kscout.device import peak_memory
from kscout.training.convolution import can_compile

HORIZONS = (4, 16, 28)
"""Steps; the paper's are 16 and 28."""

Result = TypeVar("Result")


def measure_memory(
    size: int, n_slices: int, q: int, device: torch.device, *, horizons: Sequence[int] = HORIZONS
) -> list[dict[str, int]]:
    """Return the peak of a non-greedy batch for each horizon: no kept graph may make it grow."""
    records = []
    for horizon in horizons:
        work = Workload(n_slices, horizon, q, method="ngreedy")
        peak = alone(device, peak_bytes, size, work, str(device))
        records.append(
            {"size": size, "n_slices": n_slices, "q": q, "horizon": horizon, "peak_bytes": peak}
        )
    return records


def alone(device: torch.device, function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function of the package; on a CPU in a process of its own.

    Peaks of a process never fall, so one process cannot show several of them.
    """
    if device.type == "cuda":
        return function(*arguments)
    context = get_context("forkserver")
    # Forked where torch is imported and has not run yet: a second saved for each call.
    context.set_forkserver_preload(["kscout.bench.memory"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_with_threads, torch.get_num_threads(), function, *arguments).result()


def _with_threads(n_threads: int, function: Callable[..., Result], *arguments: object) -> Result:
    torch.set_num_threads(n_threads)
    return function(*arguments)


def peak_bytes(size: int, work: Workload, device: str) -> int:
    """Return what the batch takes at its peak, beyond what stood before it."""
    return peak_of_first_call(size, work, torch.device(device))[0]


def peak_of_first_call(size: int, work: Workload, place: torch.device) -> tuple[int, TrainingBatch]:
    """Run a batch once: return what it took at its peak, and the batch."""
    # Measuring backends takes more memory than the batch, and processes might choose differently.
    backend = "compiled" if place.type == "cpu" and can_compile() else "onednn-last"
    engine = Engine.build(size, min(work.n_slices, 16), place, backend=backend)
    release(place)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        batch = TrainingBatch(engine, work)
        batch.gradients()
        return torch.cuda.max_memory_allocated(place) - before, batch
    batch = TrainingBatch(engine, work)
    before = peak_memory(place)
    batch.gradients()
    return peak_memory(place) - before, batch
