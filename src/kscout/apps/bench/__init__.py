"""`kscout bench`: the gradients of a training's greedy batch next to a plain implementation."""

import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import torch

from kscout.apps.bench.engine import LARGEST_SIZE, Engine, release
from kscout.apps.bench.yardstick import compare_with_plain
from kscout.device import describe_device, resolve_device
from kscout.errors import ConfigError
from kscout.json_types import JsonObject

SIZES = (64, 128)
_Q = 8
"""Columns sampled per state, as in the paper."""


def run_benchmarks(*, device: str = "auto", sizes: Sequence[int] = SIZES) -> JsonObject:
    """Compare both implementations at each size, and return one JSON object."""
    _check_sizes(sizes)
    place = resolve_device(device)
    # The paper's batch on CUDA, a smaller one on a CPU, where the plain one takes seconds.
    n_slices, horizon = (16, 16) if place.type == "cuda" else (4, 2)
    results: JsonObject = {
        # Nothing that identifies the machine.
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe_device(place),
        "machine": platform.machine(),
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{"yardstick_ratio": {}, "yardstick": {}},
    }
    for size in sizes:
        engine = Engine.build(size, n_slices, place)
        yardstick = compare_with_plain(engine, horizon=horizon, q=_Q)
        results["yardstick_ratio"][str(size)] = yardstick["ratio"]
        results["yardstick"][str(size)] = yardstick
        release(place)
    results["load_after"] = os.getloadavg()[0]
    return results


def _check_sizes(sizes: Sequence[int]) -> None:
    wrong = [size for size in sizes if not 32 <= size <= LARGEST_SIZE or size % 16]
    if wrong or not sizes:
        raise ConfigError(
            f"cannot bench images of {wrong[0] if wrong else 'no'} pixels; "
            f"choose multiples of 16 from 32 to {LARGEST_SIZE}, e.g. --size 64"
        )


def describe(results: JsonObject) -> Iterator[str]:
    """Yield the result of `run_benchmarks` as lines of text."""
    yield (
        "{date}, {device} ({machine}, {n_cores} cores, {n_threads} threads, load "
        "{load_before:.1f} before), torch {torch}".format(**results)
    )
    yield "gradients of a greedy batch, against a plain implementation in 32 bit:"
    for size, record in results["yardstick"].items():
        rounds = " ".join(f"{ratio:.2f}" for ratio in record["ratios"])
        yield (
            f"{size}x{size}: {{ratio:.2f}} times as fast (median of {rounds}), "
            f"{1e3 * min(record['kscout_s']):.1f} ms in {{arithmetic}} for {{n_slices}} slices, "
            "{horizon} steps, {mean_distinct_of_q:.2f} distinct columns of {q}; cosine of the "
            "gradients {gradient_cosine:.4f}"
        ).format(**record)
