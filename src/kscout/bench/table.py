"""Benchmarks in tables for people."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_MEBIBYTE = 2**20


def print_tables(found: dict[str, Any], console: Console | None = None) -> None:
    """Print what `run_benchmarks` returned."""
    console = console or Console()
    ceilings = found["ceilings"]
    console.print(
        f"{found['date']}, {found['device']} ({found['machine']}, {found['n_cores']} cores, "
        f"{found['n_threads']} threads, load {found['load_before']:.1f} before), torch "
        f"{found['torch']}\nceilings of this run: {ceilings['gflops_per_s']:.0f} GFLOP/s, "
        f"{ceilings['copy_gb_per_s']:.1f} GB/s copied"
    )
    console.print(_yardstick(found["yardstick"]))
    console.print(_parts(found["parts"]))
    console.print(_batches(found["batches"]))
    console.print(_agreement(found["agreement"], found["weights"]))
    if found["memory"]:
        console.print(_memory(found["memory"]))
    if "scaling" in found:
        console.print(_scaling(found["scaling"]))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _yardstick(records: dict[str, Any]) -> Table:
    table = _table(
        "Greedy batch against the plain implementation (median of three interleaved rounds)",
        *("size", "times faster", "rounds", "with", "slices", "steps"),
        *("distinct of 8", "gradient differs"),
    )
    for size, record in records.items():
        table.add_row(
            size,
            f"{record['ratio']:.2f}",
            " ".join(f"{ratio:.2f}" for ratio in record["ratios"]),
            f"{record['precision']}, {record['convolution']}",
            str(record["n_slices"]),
            str(record["horizon"]),
            f"{record['mean_distinct_of_q']:.2f}",
            f"{record['relative_gradient_difference']:.0e}",
        )
    return table


def _parts(records: list[dict[str, Any]]) -> Table:
    table = _table("Parts", "part", "size", "images/s", "limit", "share", "MFLOP", "MB")
    for record in records:
        table.add_row(
            record["part"],
            str(record["size"]),
            f"{record['images_per_s']:,.0f}",
            f"{record['limit_images_per_s']:,.0f}",
            f"{record['share_of_limit']:.0%}",
            f"{record['flops_per_image'] / 1e6:,.1f}",
            f"{record['bytes_per_image'] / 1e6:.2f}",
        )
    return table


def _batches(records: list[dict[str, Any]]) -> Table:
    columns = ("estimator", "size", "slices", "steps", "q", "seconds", "reconstructions/s")
    table = _table("Whole batches", *columns)
    for record in records:
        shape = (str(record[key]) for key in ("size", "n_slices", "horizon", "q"))
        speed = f"{record['reconstructions_per_s']:,.0f}"
        table.add_row(record["method"], *shape, f"{record['seconds']:.3f}", speed)
    return table


def _agreement(records: list[dict[str, Any]], weights: str) -> Table:
    table = _table(
        f"Agreement with the plain network in 32 bit, {weights} weights",
        *("reconstructor", "size", "mean SSIM differs", "rank correlation", "agrees"),
    )
    for record in records:
        table.add_row(
            record["reconstructor"],
            str(record["size"]),
            f"{record['mean_ssim_difference']:.1e}",
            f"{record['rank_correlation']:.4f}",
            "yes" if record["agrees"] else "no",
        )
    return table


def _memory(records: list[dict[str, Any]]) -> Table:
    table = _table("Peak memory of a non-greedy batch", "steps", "size", "slices", "q", "MiB")
    for record in records:
        shape = (str(record[key]) for key in ("horizon", "size", "n_slices", "q"))
        table.add_row(*shape, f"{record['peak_bytes'] / _MEBIBYTE:,.0f}")
    return table


def _scaling(records: list[dict[str, Any]]) -> Table:
    columns = ("varied", "slices", "q", "steps", "size", "seeds", "seconds", "growth over work")
    table = _table("Scaling of a greedy batch (growth 1 is linear, less is better)", *columns)
    for record in records:
        shape = (str(record[key]) for key in ("n_slices", "q", "horizon", "size", "n_seeds"))
        growth = f"{record['cost_growth']:.2f}" if "cost_growth" in record else ""
        table.add_row(record["varied"], *shape, f"{record['seconds']:.3f}", growth)
    return table
