"""Growth of a batch's time and memory with slices, q, horizon and image size."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import TypeVar, final

import numpy as np
import torch

from kscout.apps.bench.engine import PAPER, Engine, TrainingBatch, Workload, best_time, release
from kscout.children import SAFE_PATH, end_with_parent, environment_of_children
from kscout.device import peak_memory
from kscout.json_types import JsonObject
from kscout.training.convolution import can_compile

BASE = {"cpu": (64, Workload(n_slices=4, horizon=2, q=8)), "cuda": (128, PAPER)}
"""Image size and batch of the baseline, by kind of device."""

_ALIKE = {"q": (4, 8, 16), "size": (64, 128, 256)}
STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"n_slices": (2, 4, 8, 16), "horizon": (2, 4, 8), **_ALIKE},
    "cuda": {"n_slices": (8, 16, 32, 64), "horizon": (8, 16, 32), **_ALIKE},
}
"""Values of each quantity, varied one at a time."""

Result = TypeVar("Result")


@final
@dataclass(frozen=True)
class BatchCost:
    """Time and memory of one batch."""

    seconds: float
    peak_bytes: int
    arithmetic: str
    policy: str
    """Class of the trained network, since fused kernels do not support every size."""


def measure_scaling(
    device: torch.device,
    *,
    base: tuple[int, Workload] | None = None,
    steps: Mapping[str, Sequence[int]] | None = None,
) -> JsonObject:
    """Return a record per batch as one quantity varies at a time, and each quantity's growth.

    `base` is the image size and batch of the baseline, by default that of the device; `steps` are
    the values of the varied quantities.
    """
    size, work = base or BASE[device.type]
    known: dict[tuple[int, Workload], BatchCost] = {}
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
        # The cost of an image is proportional to its pixels.
        amounts = [value**2 if varied == "size" else value for value in values]
        growth[varied] = growth_exponent(amounts, [row.seconds for row in rows])
    return {"scaling": records, "scaling_growth": growth}


def growth_exponent(amounts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent p of the best fit `seconds ~ amounts ** p` in logarithms."""
    return float(np.polyfit(np.log(amounts), np.log(seconds), 1)[0])


def alone(device: torch.device, function: Callable[..., Result], *arguments: object) -> Result:
    """Call a function of the package; on a CPU in a separate process.

    The peak memory of a process never decreases, so that each measurement needs its own.
    """
    if device.type == "cuda":
        return function(*arguments)
    context = get_context("forkserver")
    # Forked from a process that has imported torch and optimizers, which saves seconds per call.
    context.set_forkserver_preload(["kscout.apps.bench.growth", "torch._dynamo"])
    n_threads = (torch.get_num_threads(),)
    with (
        environment_of_children(SAFE_PATH),
        ProcessPoolExecutor(1, context, _begin, n_threads) as pool,
    ):
        return pool.submit(function, *arguments).result()


def _begin(n_threads: int) -> None:
    end_with_parent()
    torch.set_num_threads(n_threads)


def measure_row(size: int, work: Workload, device: str) -> BatchCost:
    """Run one batch: its peak memory above the baseline at the first call, then its best time."""
    place = torch.device(device)
    # A fixed backend, because processes might select different ones.
    backend = "compiled" if place.type == "cpu" and can_compile() else "onednn-last"
    engine = Engine.build(size, min(work.n_slices, 16), place, backend=backend)
    release(place)
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
    batch = TrainingBatch(engine, work)
    if place.type == "cpu":
        before = peak_memory(place)
    batch.gradients()
    peak = peak_memory(place) - before
    # On a CPU other work interferes, so the best time needs more repetitions.
    at_least_s = 0.2 if place.type == "cuda" else 1.0
    seconds = best_time(batch.gradients, place, at_least_s=at_least_s)
    return BatchCost(seconds, peak, engine.arithmetic, type(batch.estimator.view).__name__)
