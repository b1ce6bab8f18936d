"""Benchmarks in tables for people; `tables.toml` holds their layouts."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def print_tables(found: dict[str, Any], console: Console | None = None) -> None:
    """Print what `run_benchmarks` returned."""
    # Narrower, columns would be cut; a narrow terminal wraps lines instead.
    console = console or Console(width=max(_LEAST_WIDTH, Console(markup=False).width), markup=False)
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
    layouts = Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
    for name, layout in tomllib.loads(layouts).items():
        if shown[name]:
            title = layout["title"].format(**found)
            console.print(_table(title, layout["columns"], layout["cells"], shown[name]))


def _table(title: str, columns: str, templates: str, records: Iterable[Record]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns.split("|")):
        table.add_column(column, justify="left" if number == 0 else "right")
    for record in records:
        scaled = {to: by * record[key] for to, (key, by) in _SCALED.items() if key in record}
        words = {"verdict": "yes" if record.get("agrees") else "no", **scaled, **record}
        words["extrapolated"] = _extrapolated(record)
        cells = [cell.format(**words) for cell in templates.split("|")]
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
