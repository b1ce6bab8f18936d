"""How a batch's time and memory grow with slices, q, horizon, image size and number of seeds."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any, TypeVar, final

import numpy as np
import torch

from kscout.bench.engine import PAPER, Engine, TrainingBatch, Workload, release
from kscout.bench.limits import best_time
from kscout.device import peak_memory
from kscout.training.convolution import can_compile

HORIZONS = (4, 16, 28)
"""Steps of which memory is measured; the paper's are 16 and 28."""

BASE = {"cpu": (64, Workload(n_slices=4, horizon=2, q=8)), "cuda": (128, PAPER)}
"""Image size and batch that the rows start from, by kind of device."""

_ALIKE = {"q": (4, 8, 16), "size": (64, 128, 256), "n_seeds": (1, 2, 5)}
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"n_slices": (2, 4, 8, 16), "horizon": (2, 4, 8), **_ALIKE},
    "cuda": {"n_slices": (8, 16, 32, 64), "horizon": (8, 16, 32), **_ALIKE},
}
"""What varies, one at a time."""

Result = TypeVar("Result")


@final
@dataclass(frozen=True)
class Row:
    """What one batch took."""

    seconds: float
    peak_bytes: int
    arithmetic: str
    policy: str
    """The network that learns: fused kernels do not exist for every size."""


def measure_memory(
    size: int, work: Workload, device: torch.device, *, horizons: Sequence[int] = HORIZONS
) -> list[dict[str, int]]:
    """Return the peak memory of a non-greedy batch for each horizon, with which it hardly grows."""
    records = []
    for horizon in horizons:
        own = replace(work, horizon=horizon, method="ngreedy")
        peak = alone(device, peak_bytes, size, own, str(device))
        shape = {"size": size, "n_slices": own.n_slices, "q": own.q, "horizon": horizon}
        records.append({**shape, "peak_bytes": peak})
    return records


def measure_scaling(
    device: torch.device,
    *,
    base: tuple[int, Workload] | None = None,
    steps: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Return a record per batch as one quantity varies at a time, and each quantity's growth.

    Args:
        device: where batches run.
        base: image size and batch that do not vary; by default the device's own.
        steps: values of what varies.
    """
    size, work = base or BASE[device.type]
    known: dict[tuple[int, Workload], Row] = {}
    records, growth = [], {}
    for varied, values in (steps or STEPS[device.type]).items():
        rows = []
        for value in values:
            setting = {**asdict(work), "size": size, varied: value}
            key = (setting.pop("size"), Workload(**setting))
            if key not in known:
                known[key] = alone(device, measure_row, *key, str(device))
                release(device)
            rows.append(known[key])
            records.append(
                {"varied": varied, "size": key[0], **asdict(key[1]), **asdict(known[key])}
            )
        # A picture's cost is that of its pixels.
        amounts = [value**2 if varied == "size" else value for value in values]
        growth[varied] = growth_exponent(amounts, [row.seconds for row in rows])
    return {"scaling": records, "scaling_growth": growth}


def growth_exponent(amounts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return p of the power law `seconds ~ amounts ** p` that fits best in logarithms."""
    return float(np.polyfit(np.log(amounts), np.log(seconds), 1)[0])


def alone(device: torch.device, function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function of the package; on a CPU in a process of its own.

    Peaks of a process never fall, so one process cannot show several of them.
    """
    if device.type == "cuda":
        return function(*arguments)
    context = get_context("forkserver")
    # Forked where torch and what optimizers load are imported: seconds saved for each call.
    context.set_forkserver_preload(["kscout.bench.growth", "torch._dynamo"])
    n_threads = (torch.get_num_threads(),)
    with ProcessPoolExecutor(1, context, torch.set_num_threads, n_threads) as pool:
        return pool.submit(function, *arguments).result()


def peak_bytes(size: int, work: Workload, device: str) -> int:
    """Return the peak memory of a batch, less what was held before it."""
    return peak_of_first_call(size, work, torch.device(device))[0]


def measure_row(size: int, work: Workload, device: str) -> Row:
    """Run one batch: its peak memory at the first call, its best time after that."""
    place = torch.device(device)
    peak, batch = peak_of_first_call(size, work, place)
    # A CPU has other work to do at times, so it gets longer for a good moment.
    at_least_s = 0.2 if place.type == "cuda" else 1.0
    seconds = best_time(batch.gradients, place, at_least_s=at_least_s)
    learned = type(batch.estimator.views[0]).__name__
    return Row(seconds, peak, batch.engine.arithmetic, learned)


def peak_of_first_call(size: int, work: Workload, place: torch.device) -> tuple[int, TrainingBatch]:
    """Run a batch once and return the peak of its memory, less what was held before, and it."""
    # Named, so that processes cannot choose differently.
    backend = "compiled" if place.type == "cpu" and can_compile() else "onednn-last"
    engine = Engine.build(size, min(work.n_slices, 16), place, backend=backend)
    release(place)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        batch = TrainingBatch(engine, work)
    else:
        batch = TrainingBatch(engine, work)
        before = peak_memory(place)
    batch.gradients()
    return peak_memory(place) - before, batch
