"""`kscout bench`: each part next to its limit, and whole batches next to a plain implementation."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime

import torch

from kscout.apps.bench.engine import LARGEST_SIZE, PAPER, Engine, release
from kscout.apps.bench.growth import measure_scaling
from kscout.apps.bench.parts import measure_ceilings, measure_parts
from kscout.apps.bench.table import print_tables
from kscout.apps.bench.yardstick import compare_with_plain
from kscout.device import describe_device, resolve_device
from kscout.errors import ConfigError
from kscout.json_types import JsonObject

SIZES = (64, 128)
Q = 8
"""Columns sampled per state, as in the paper."""


def run_benchmarks(
    *,
    device: str = "auto",
    sizes: Sequence[int] = SIZES,
    quick: bool = False,
    scaling: bool = False,
) -> JsonObject:
    """Measure everything and return it as one JSON object.

    `quick` takes fewer slices and shorter repetitions, for a rough impression; `scaling` also times
    batches of growing size, about a minute more.
    """
    _check_sizes(sizes)
    place = resolve_device(device)
    at_least_s = 0.1 if quick else 1.0
    n_slices, horizon = (2, 1) if quick else (4, 2)
    if place.type == "cuda":
        n_slices, horizon = PAPER.n_slices, PAPER.horizon
    ceilings = measure_ceilings(place, at_least_s=at_least_s)
    results: JsonObject = {
        **_describe(place),
        "ceilings": {
            "gflops_per_s": ceilings.flops_per_s / 1e9,
            "half_gflops_per_s": ceilings.half_flops_per_s / 1e9,
            "copy_gb_per_s": ceilings.bytes_per_s / 1e9,
        },
        **{"yardstick_ratio": {}, "yardstick": {}, "parts": []},
    }
    for size in sizes:
        engine = Engine.build(size, n_slices, place)
        yardstick = compare_with_plain(engine, horizon=horizon, q=Q)
        results["yardstick_ratio"][str(size)] = yardstick["ratio"]
        results["yardstick"][str(size)] = yardstick
        release(place)
        results["parts"] += measure_parts(engine, ceilings, at_least_s=at_least_s)
    if scaling:
        results.update(measure_scaling(place))
    results["load_after"] = os.getloadavg()[0]
    return results


def _describe(place: torch.device) -> JsonObject:
    """Return date, hardware and versions, without anything that identifies the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe_device(place),
        "machine": platform.machine(),
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _check_sizes(sizes: Sequence[int]) -> None:
    wrong = [size for size in sizes if not 32 <= size <= LARGEST_SIZE or size % 16]
    if wrong or not sizes:
        raise ConfigError(
            f"cannot bench images of {wrong[0] if wrong else 'no'} pixels; "
            f"choose multiples of 16 from 32 to {LARGEST_SIZE}, e.g. --size 64"
        )


__all__ = ["print_tables", "run_benchmarks"]
