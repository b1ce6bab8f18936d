"""`kscout bench`: each part beside its limit, whole batches beside a plain implementation."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from kscout.bench.agreement import measure_agreement
from kscout.bench.engine import Engine
from kscout.bench.limits import measure_ceilings
from kscout.bench.memory import measure_memory
from kscout.bench.parts import measure_batches, measure_parts
from kscout.bench.scaling import measure_scaling
from kscout.bench.table import print_tables
from kscout.bench.yardstick import compare_with_plain
from kscout.errors import ConfigError
from kscout.reconstruction import load
from kscout.reconstruction.unet import UNet
from kscout.training.distributed import describe_device, resolve_device

SIZES = (64, 128)
Q = 8
"""Columns drawn per state, as in the paper."""


def run_benchmarks(
    *,
    device: str = "auto",
    sizes: Sequence[int] = SIZES,
    quick: bool = False,
    scaling: bool = False,
    reconstructor: str | None = None,
) -> dict[str, Any]:
    """Measure everything and return it as one JSON object.

    Args:
        device: auto, cpu or cuda.
        sizes: image sizes.
        quick: fewer slices, shorter repetitions and no memory: a look, not a result.
        scaling: also time batches of growing size, a minute or two more.
        reconstructor: a trained U-Net to judge agreement on; None for random weights.
    """
    _check_sizes(sizes)
    place = resolve_device(device)
    at_least_s = 0.1 if quick else 1.0
    n_slices, horizon = (2, 1) if quick else (4, 2)
    if place.type == "cuda":
        n_slices, horizon = 16, 16
    unet = _trained(reconstructor)
    found: dict[str, Any] = {**_describe(place), "yardstick_ratio": {}, "yardstick": {}}
    found["weights"] = "random" if unet is None else str(reconstructor)
    ceilings = measure_ceilings(place, at_least_s=at_least_s)
    found["ceilings"] = {
        "gflops_per_s": ceilings.flops_per_s / 1e9,
        "copy_gb_per_s": ceilings.bytes_per_s / 1e9,
    }
    found.update(parts=[], batches=[], agreement=[])
    for size in sizes:
        # The plain implementation computes in float32, and its columns are compared with ours.
        yardstick = compare_with_plain(
            Engine.build(size, n_slices, place, precision="fp32", unet=unet),
            horizon=horizon,
            q=Q,
        )
        found["yardstick_ratio"][str(size)] = yardstick["ratio"]
        found["yardstick"][str(size)] = yardstick
        engine = Engine.build(size, n_slices, place, unet=unet)
        found["parts"] += measure_parts(engine, ceilings, at_least_s=at_least_s)
        found["batches"] += measure_batches(engine, horizon=horizon, q=Q)
        found["agreement"].append(measure_agreement(engine))
    # Each horizon is a process of its own, which takes seconds to start.
    found["memory"] = [] if quick else measure_memory(min(sizes), 2, Q, place)
    if scaling:
        found["scaling"] = list(measure_scaling(place))
    return found


def print_benchmarks(
    *,
    device: str = "auto",
    as_json: bool = False,
    sizes: Sequence[int] = SIZES,
    quick: bool = False,
    scaling: bool = False,
    reconstructor: str | None = None,
) -> None:
    """Run the benchmarks and print tables, or one JSON object."""
    found = run_benchmarks(
        device=device, sizes=sizes, quick=quick, scaling=scaling, reconstructor=reconstructor
    )
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        print_tables(found)


def _trained(reconstructor: str | None) -> UNet | None:
    """Load the network to judge agreement on."""
    if reconstructor is None:
        return None
    found = load(reconstructor)
    if not isinstance(found, UNet):
        raise ConfigError(
            f"{reconstructor} is a {type(found).__name__}; the benchmarks run the paper's U-Net"
        )
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
    wrong = [size for size in sizes if size < 32 or size % 16]
    if wrong or not sizes:
        raise ConfigError(
            f"cannot bench images of {wrong[0] if wrong else 'no'} pixels; "
            "choose multiples of 16 from 32 on, e.g. --size 64"
        )
