"""`kscout bench`: each part beside its limit, whole batches beside a plain implementation."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from kscout.bench.agreement import measure_agreement
from kscout.bench.coils import measure_coils
from kscout.bench.engine import (
    LARGEST_SIZE,
    PAPER,
    RECONSTRUCTOR,
    Engine,
    Workload,
    release,
    trained_unet,
)
from kscout.bench.growth import measure_memory, measure_scaling
from kscout.bench.limits import measure_ceilings
from kscout.bench.parts import measure_batches, measure_parts
from kscout.bench.table import print_tables
from kscout.bench.yardstick import compare_with_plain
from kscout.device import describe_device, resolve_device
from kscout.errors import ConfigError

SIZES = (64, 128)
Q = 8
"""Columns drawn per state, as in the paper."""


def run_benchmarks(
    *,
    device: str = "auto",
    sizes: Sequence[int] = SIZES,
    quick: bool = False,
    scaling: bool = False,
    reconstructor: str = RECONSTRUCTOR,
) -> dict[str, Any]:
    """Measure everything and return it as one JSON object.

    Args:
        device: auto, cpu or cuda.
        sizes: image sizes.
        quick: fewer slices, shorter repetitions and no memory: a look, not a result.
        scaling: also time batches of growing size, about a minute more.
        reconstructor: a trained U-Net; speed does not depend on it, agreement does.
    """
    _check_sizes(sizes)
    place = resolve_device(device)
    on_cuda, at_least_s = place.type == "cuda", 0.1 if quick else 1.0
    n_slices, horizon = (2, 1) if quick else (4, 2)
    if on_cuda:
        n_slices, horizon = PAPER.n_slices, PAPER.horizon
    unet = trained_unet(reconstructor)
    ceilings = measure_ceilings(place, at_least_s=at_least_s)
    found: dict[str, Any] = {
        **_describe(place),
        "weights": reconstructor,
        "ceilings": {
            "gflops_per_s": ceilings.flops_per_s / 1e9,
            "half_gflops_per_s": ceilings.half_flops_per_s / 1e9,
            "copy_gb_per_s": ceilings.bytes_per_s / 1e9,
        },
        **{"yardstick_ratio": {}, "yardstick": {}, "parts": [], "batches": [], "agreement": []},
        "coils": [],
    }
    for size in sizes:
        engine = Engine.build(size, n_slices, place, unet=unet)
        yardstick = compare_with_plain(engine, horizon=horizon, q=Q)
        found["yardstick_ratio"][str(size)] = yardstick["ratio"]
        found["yardstick"][str(size)] = yardstick
        release(place)
        found["parts"] += measure_parts(engine, ceilings, at_least_s=at_least_s)
        found["coils"] += measure_coils(size, place, unet, ceilings, at_least_s=at_least_s)
        found["batches"] += measure_batches(engine, horizon=horizon, q=Q)
        found["agreement"] += measure_agreement(size, 2 if quick else 4, place, unet)
    # A small batch on a CPU, the paper's on CUDA.
    size, work = (max(sizes), PAPER) if on_cuda else (min(sizes), Workload(2, 1, Q))
    found["memory"] = [] if quick else measure_memory(size, work, place)
    if scaling:
        found.update(measure_scaling(place))
    found["load_after"] = os.getloadavg()[0]
    return found


def _describe(place: torch.device) -> dict[str, Any]:
    """Return date, hardware and versions; nothing in it names the machine."""
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
