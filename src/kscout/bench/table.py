"""Benchmarks in tables for people."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_LEAST_WIDTH = 140
_WORDS = {"n_slices": "slices", "q": "q", "horizon": "steps", "size": "size", "n_seeds": "seeds"}
_SCALED = {
    "ms": ("seconds", 1e3),
    "update_ms": ("update_seconds", 1e3),
    "mflop": ("flops_per_image", 1e-6),
    "megabytes": ("bytes_per_image", 1e-6),
    "mebibytes": ("peak_bytes", 2**-20),
}
"""Units for people: what a record has, and the factor."""

Record = dict[str, Any]


class _Layout(NamedTuple):
    """How records of one kind are shown: columns, and templates for their cells."""

    title: str
    columns: str
    cells: str


_LAYOUTS = {
    "yardstick": _Layout(
        "Gradients of a greedy batch as trained, against the plain implementation in 32 bit "
        "(median of three interleaved rounds)",
        "size|times faster|rounds|ms|with|slices|steps|distinct of q|gradients' cosine"
        "|last layer differs",
        "{size}|{ratio:.2f}|{rounds}|{ms:.1f}|{arithmetic}|{n_slices}|{horizon}"
        "|{mean_distinct_of_q:.2f} of {q}|{gradient_cosine:.4f}"
        "|{relative_gradient_difference:.0e}",
    ),
    "parts": _Layout(
        "Parts, as trained",
        "part|size|images|bits|images/s|limit|share|MFLOP|MB",
        "{part}|{size}|{n_images}|{bits}|{images_per_s:,.0f}|{limit_images_per_s:,.0f}"
        "|{share_of_limit:.0%}|{mflop:,.1f}|{megabytes:.2f}",
    ),
    "batches": _Layout(
        "Whole batches: gradients alone, then updates with draws and optimizer. The last column is "
        "an extrapolation to the paper's 21,750 updates, without validation (*: from a smaller "
        "batch, by reconstructions)",
        "estimator|size|slices|steps|q|seeds|ms|reconstructions/s|update ms|-> 21,750 updates",
        "{method}|{size}|{n_slices}|{horizon}|{q}|{n_seeds}|{ms:.1f}"
        "|{reconstructions_per_s:,.0f}|{update_ms:.1f}|{extrapolated}",
    ),
    "agreement": _Layout(
        "Agreement with the plain network in 32 bit: {weights}, procedural knees, all candidates",
        "arithmetic|size|columns measured|slices|candidates|mean SSIM differs|rank correlation"
        "|lowest|agrees",
        "{arithmetic}|{size}|{n_measured}|{n_slices}|{n_candidates}|{mean_ssim_difference:.1e}"
        "|{rank_correlation:.4f}|{lowest_rank_correlation:.4f}|{verdict}",
    ),
    "memory": _Layout(
        "Peak memory of a non-greedy batch",
        "steps|size|slices|q|MiB",
        "{horizon}|{size}|{n_slices}|{q}|{mebibytes:,.0f}",
    ),
    "scaling": _Layout(
        "Scaling of a greedy batch's gradients (n^1 is linear, less is better)",
        "varied|slices|q|steps|size|seeds|ms|peak MiB|time grows with",
        "{what}|{n_slices}|{q}|{horizon}|{size}|{n_seeds}|{ms:.1f}|{mebibytes:,.0f}|{grown}",
    ),
}


def print_tables(found: dict[str, Any], console: Console | None = None) -> None:
    """Print what `run_benchmarks` returned."""
    # Narrower, columns would be cut; a narrow terminal wraps lines instead.
    console = console or Console(width=max(_LEAST_WIDTH, Console().width))
    console.print(
        "{date}, {device} ({machine}, {n_cores} cores, {n_threads} threads, load "
        "{load_before:.1f} before), torch {torch}\nceilings of this run: "
        "{ceilings[gflops_per_s]:,.0f} GFLOP/s in 32 bit, {ceilings[half_gflops_per_s]:,.0f} in 16 "
        "bit, {ceilings[copy_gb_per_s]:,.1f} GB/s copied; weights: {weights}".format(**found)
    )
    shown = {
        **found,
        "yardstick": [_compared(*item) for item in found["yardstick"].items()],
        "scaling": _grown(found.get("scaling", []), found.get("scaling_growth", {})),
    }
    for name, layout in _LAYOUTS.items():
        if shown[name]:
            console.print(_table(layout, layout.title.format(**found), shown[name]))


def _table(layout: _Layout, title: str, records: Iterable[Record]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(layout.columns.split("|")):
        table.add_column(column, justify="left" if number == 0 else "right")
    for record in records:
        scaled = {to: by * record[key] for to, (key, by) in _SCALED.items() if key in record}
        words = {"verdict": "yes" if record.get("agrees") else "no", **scaled, **record}
        words["extrapolated"] = _extrapolated(record)
        cells = [cell.format(**words) for cell in layout.cells.split("|")]
        table.add_row(*cells, end_section=record.get("is_last", False))
    return table


def _compared(size: str, record: Record) -> Record:
    rounds = " ".join(f"{ratio:.2f}" for ratio in record["ratios"])
    return {"size": size, "rounds": rounds, "seconds": min(record["kscout_s"]), **record}


def _extrapolated(record: Record) -> str:
    minutes = record.get("extrapolated_paper_minutes")
    if minutes is None:
        return ""
    words = f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"
    return words if record["extrapolated_from"] == "this batch" else words + " *"


def _grown(records: list[Record], growth: dict[str, float]) -> list[Record]:
    shown = []
    for number, record in enumerate(records):
        varied = record["varied"]
        is_last = number + 1 == len(records) or records[number + 1]["varied"] != varied
        grown = f"{'pixels' if varied == 'size' else 'n'}^{growth[varied]:.2f}" if is_last else ""
        shown.append({**record, "what": _WORDS[varied], "grown": grown, "is_last": is_last})
    return shown
