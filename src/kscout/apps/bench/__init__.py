"""`kscout bench`: each part next to its limit, and whole batches next to a plain implementation."""

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kscout.apps.bench.engine import LARGEST_SIZE, PAPER, Engine, release
from kscout.apps.bench.growth import measure_scaling
from kscout.apps.bench.parts import measure_ceilings, measure_parts
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
    load_before = os.getloadavg()[0]
    ceilings = measure_ceilings(place, at_least_s=at_least_s)
    results: JsonObject = {
        # Nothing that identifies the machine.
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": describe_device(place),
        "machine": platform.machine(),
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
        "load_before": load_before,
        "python": platform.python_version(),
        "torch": torch.__version__,
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


def _check_sizes(sizes: Sequence[int]) -> None:
    wrong = [size for size in sizes if not 32 <= size <= LARGEST_SIZE or size % 16]
    if wrong or not sizes:
        raise ConfigError(
            f"cannot bench images of {wrong[0] if wrong else 'no'} pixels; "
            f"choose multiples of 16 from 32 to {LARGEST_SIZE}, e.g. --size 64"
        )


_LEAST_WIDTH = 140
_LABELS = {"n_slices": "slices", "q": "q", "horizon": "steps", "size": "size"}


def print_tables(results: JsonObject, console: Console | None = None) -> None:
    """Print the result of `run_benchmarks`."""
    # A narrower table would cut columns; a narrow terminal wraps lines instead.
    console = console or Console(width=max(_LEAST_WIDTH, Console(markup=False).width), markup=False)
    console.print(
        "{date}, {device} ({machine}, {n_cores} cores, {n_threads} threads, load "
        "{load_before:.1f} before), torch {torch}\nupper bounds measured in this run: "
        "{ceilings[gflops_per_s]:,.0f} GFLOP/s in 32 bit, {ceilings[half_gflops_per_s]:,.0f} in 16 "
        "bit, {ceilings[copy_gb_per_s]:,.1f} GB/s copied".format(**results)
    )
    _print(
        console,
        "Gradients of a greedy batch, against the plain implementation in 32 bit (median of three "
        "interleaved rounds)",
        "size|times faster|rounds|ms|with|slices|steps|distinct of q|gradients' cosine|"
        "last layer differs",
        (_compared(*item) for item in results["yardstick"].items()),
    )
    _print(
        console,
        "Parts of a training, next to their limits",
        "part|size|images|bits|images/s|limit|share|MFLOP|MB",
        (
            "{part}|{size}|{n_images}|{bits}|{images_per_s:,.0f}|{limit_images_per_s:,.0f}|"
            "{share_of_limit:.0%}|{0:,.1f}|{1:.2f}".format(
                record["flops_per_image"] / 1e6, record["bytes_per_image"] / 1e6, **record
            )
            for record in results["parts"]
        ),
    )
    if "scaling" in results:
        _print(
            console,
            "Scaling of the gradients of a greedy batch (n^1 is linear, less is better)",
            "varied|slices|q|steps|size|ms|peak MiB|time grows with",
            _grown(results["scaling"], results["scaling_growth"]),
        )


def _print(console: Console, title: str, columns: str, rows: Iterable[str]) -> None:
    """Print one table, whose cells are separated by bars; an empty row separates sections."""
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns.split("|")):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        if row:
            table.add_row(*row.split("|"))
        else:
            table.add_section()
    console.print(table)


def _compared(size: str, record: JsonObject) -> str:
    rounds = " ".join(f"{ratio:.2f}" for ratio in record["ratios"])
    return (
        f"{size}|{{ratio:.2f}}|{rounds}|{1e3 * min(record['kscout_s']):.1f}|{{arithmetic}}|"
        "{n_slices}|{horizon}|{mean_distinct_of_q:.2f} of {q}|{gradient_cosine:.4f}|"
        "{relative_gradient_difference:.0e}"
    ).format(**record)


def _grown(records: Sequence[JsonObject], growth: dict[str, float]) -> Iterable[str]:
    for number, record in enumerate(records):
        varied = record["varied"]
        is_last = number + 1 == len(records) or records[number + 1]["varied"] != varied
        grown = f"{'pixels' if varied == 'size' else 'n'}^{growth[varied]:.2f}" if is_last else ""
        yield (
            "{0}|{n_slices}|{q}|{horizon}|{size}|{1:.1f}|{2:,.0f}|{3}".format(
                _LABELS[varied],
                1e3 * record["seconds"],
                record["peak_bytes"] / 2**20,
                grown,
                **record,
            )
        )
        if is_last:
            yield ""
