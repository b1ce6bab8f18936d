"""How a batch's time and memory grow with slices, q, horizon, image size and number of seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from kscout.bench.engine import PAPER, Workload, release
from kscout.bench.limits import best_time
from kscout.bench.memory import alone, peak_of_first_call

BASE = {"cpu": (64, Workload(n_slices=4, horizon=2, q=8)), "cuda": (128, PAPER)}
"""Image size and batch that the rows start from, by kind of device."""

STEPS: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {
        "n_slices": (2, 4, 8, 16),
        "q": (4, 8, 16),
        "horizon": (2, 4, 8),
        "size": (64, 128, 256),
        "n_seeds": (1, 2, 5),
    },
    "cuda": {
        "n_slices": (8, 16, 32, 64),
        "q": (4, 8, 16),
        "horizon": (8, 16, 32),
        "size": (64, 128, 256),
        "n_seeds": (1, 2, 5),
    },
}
"""What varies, one at a time."""


@final
@dataclass(frozen=True)
class Row:
    """What one batch took."""

    seconds: float
    peak_bytes: int
    arithmetic: str
    policy: str
    """The network that learns: fused kernels do not exist for every size."""


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
            row = known[key]
            rows.append(row)
            records.append({"varied": varied, "size": key[0], **asdict(key[1]), **asdict(row)})
        # A picture's cost is that of its pixels.
        amounts = [value**2 if varied == "size" else value for value in values]
        growth[varied] = growth_exponent(amounts, [row.seconds for row in rows])
    return {"scaling": records, "scaling_growth": growth}


def growth_exponent(amounts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return p of the power law `seconds ~ amounts ** p` that fits best in logarithms."""
    x, y = ([math.log(value) for value in values] for values in (amounts, seconds))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def measure_row(size: int, work: Workload, device: str) -> Row:
    """Run one batch: its peak memory at the first call, its best time after that."""
    place = torch.device(device)
    peak, batch = peak_of_first_call(size, work, place)
    # A CPU has other work to do at times, so it gets longer for a good moment.
    at_least_s = 0.2 if place.type == "cuda" else 1.0
    seconds = best_time(batch.gradients, place, at_least_s=at_least_s)
    learned = type(batch.estimator.views[0]).__name__
    return Row(seconds, peak, batch.engine.arithmetic, learned)
