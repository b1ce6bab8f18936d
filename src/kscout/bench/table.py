"""Benchmarks in tables for people."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_LEAST_WIDTH = 140
_MEBIBYTE = 2**20
_WORDS = {"n_slices": "slices", "q": "q", "horizon": "steps", "size": "size", "n_seeds": "seeds"}


def print_tables(found: dict[str, Any], console: Console | None = None) -> None:
    """Print what `run_benchmarks` returned."""
    # Narrower, columns would be cut; a narrow terminal wraps lines instead.
    console = console or Console(width=max(_LEAST_WIDTH, Console().width))
    ceilings = found["ceilings"]
    console.print(
        f"{found['date']}, {found['device']} ({found['machine']}, {found['n_cores']} cores, "
        f"{found['n_threads']} threads, load {found['load_before']:.1f} before), torch "
        f"{found['torch']}\nceilings of this run: {ceilings['gflops_per_s']:,.0f} GFLOP/s in 32 "
        f"bit, {ceilings['half_gflops_per_s']:,.0f} in 16 bit, "
        f"{ceilings['copy_gb_per_s']:,.1f} GB/s copied; weights: {found['weights']}"
    )
    console.print(_yardstick(found["yardstick"]))
    console.print(_parts(found["parts"]))
    console.print(_batches(found["batches"]))
    console.print(_agreement(found["agreement"], found["weights"]))
    if found["memory"]:
        console.print(_memory(found["memory"]))
    if "scaling" in found:
        console.print(_scaling(found["scaling"], found["scaling_growth"]))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _yardstick(records: dict[str, Any]) -> Table:
    table = _table(
        "Gradients of a greedy batch as trained, against the plain implementation in 32 bit "
        "(median of three interleaved rounds)",
        *("size", "times faster", "rounds", "ms", "with", "slices", "steps"),
        *("distinct of q", "gradients' cosine", "last layer differs"),
    )
    for size, record in records.items():
        table.add_row(
            size,
            f"{record['ratio']:.2f}",
            " ".join(f"{ratio:.2f}" for ratio in record["ratios"]),
            f"{1000 * min(record['kscout_s']):.1f}",
            record["arithmetic"],
            str(record["n_slices"]),
            str(record["horizon"]),
            f"{record['mean_distinct_of_q']:.2f} of {record['q']}",
            f"{record['gradient_cosine']:.4f}",
            f"{record['relative_gradient_difference']:.0e}",
        )
    return table


def _parts(records: list[dict[str, Any]]) -> Table:
    columns = ("part", "size", "images", "bits", "images/s", "limit", "share", "MFLOP", "MB")
    table = _table("Parts, as trained", *columns)
    for record in records:
        table.add_row(
            record["part"],
            *(str(record[key]) for key in ("size", "n_images", "bits")),
            f"{record['images_per_s']:,.0f}",
            f"{record['limit_images_per_s']:,.0f}",
            f"{record['share_of_limit']:.0%}",
            f"{record['flops_per_image'] / 1e6:,.1f}",
            f"{record['bytes_per_image'] / 1e6:.2f}",
        )
    return table


def _batches(records: list[dict[str, Any]]) -> Table:
    table = _table(
        "Whole batches: gradients alone, then updates with draws and optimizer. The last column is "
        "an extrapolation to the paper's 21,750 updates, without validation (*: from a smaller "
        "batch, by reconstructions)",
        *("estimator", "size", "slices", "steps", "q", "seeds", "ms", "reconstructions/s"),
        *("update ms", "-> 21,750 updates"),
    )
    for record in records:
        shape = (str(record[key]) for key in ("size", "n_slices", "horizon", "q", "n_seeds"))
        table.add_row(
            record["method"],
            *shape,
            f"{1000 * record['seconds']:.1f}",
            f"{record['reconstructions_per_s']:,.0f}",
            f"{1000 * record['update_seconds']:.1f}",
            _extrapolated(record),
        )
    return table


def _extrapolated(record: dict[str, Any]) -> str:
    minutes = record.get("extrapolated_paper_minutes")
    if minutes is None:
        return ""
    words = f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"
    return words if record["extrapolated_from"] == "this batch" else words + " *"


def _agreement(records: list[dict[str, Any]], weights: str) -> Table:
    table = _table(
        f"Agreement with the plain network in 32 bit: {weights}, procedural knees, all candidates",
        *("arithmetic", "size", "columns measured", "slices", "candidates"),
        *("mean SSIM differs", "rank correlation", "lowest", "agrees"),
    )
    for record in records:
        shape = (str(record[key]) for key in ("size", "n_measured", "n_slices", "n_candidates"))
        table.add_row(
            record["arithmetic"],
            *shape,
            f"{record['mean_ssim_difference']:.1e}",
            f"{record['rank_correlation']:.4f}",
            f"{record['lowest_rank_correlation']:.4f}",
            "yes" if record["agrees"] else "no",
        )
    return table


def _memory(records: list[dict[str, Any]]) -> Table:
    table = _table("Peak memory of a non-greedy batch", "steps", "size", "slices", "q", "MiB")
    for record in records:
        shape = (str(record[key]) for key in ("horizon", "size", "n_slices", "q"))
        table.add_row(*shape, f"{record['peak_bytes'] / _MEBIBYTE:,.0f}")
    return table


def _scaling(records: list[dict[str, Any]], growth: dict[str, float]) -> Table:
    table = _table(
        "Scaling of a greedy batch's gradients (n^1 is linear, less is better)",
        *("varied", "slices", "q", "steps", "size", "seeds", "ms", "peak MiB", "time grows with"),
    )
    for number, record in enumerate(records):
        varied = record["varied"]
        is_last = number + 1 == len(records) or records[number + 1]["varied"] != varied
        unit = "pixels" if varied == "size" else "n"
        table.add_row(
            _WORDS[varied],
            *(str(record[key]) for key in ("n_slices", "q", "horizon", "size", "n_seeds")),
            f"{1000 * record['seconds']:.1f}",
            f"{record['peak_bytes'] / _MEBIBYTE:,.0f}",
            f"{unit}^{growth[varied]:.2f}" if is_last else "",
            end_section=is_last,
        )
    return table
