"""`kscout demo`."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kscout.cli.console import answer_console, console
from kscout.cli.evaluate import summary_table
from kscout.cli.progress import drawn_bars

if TYPE_CHECKING:
    from kscout.evaluation.analyses.reconstructions import ReconstructionRow


_OPENING = (
    "A policy that ships with kscout is tried on knees that it never saw; then a small U-Net and a "
    "small policy learn here, apart and together: about five minutes on two idle cores. Stop it if "
    "you must: typed again, it goes on."
)
_QUICK = "Every part of the demo at the smallest sizes: nothing is learned in so few steps."


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the store, the runs and the page.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Keys everything that is drawn.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run every part at sizes that learn nothing.")
    ] = False,
) -> None:
    """Run the paper in miniature on drawn knees, and end with a page to open.

    Stop it and type the same again: it goes on, and reuses what is done.

    Example: kscout demo --out runs/demo
    """
    # Read when torch is loaded. Threads that wait by spinning take the processor from those that
    # work: with steps as short as the demo's, other programs make that several times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    begun, told = time.perf_counter(), console(stderr=True)
    told.print(_QUICK if quick else _OPENING, soft_wrap=True)
    from kscout.demo import DemoSettings, run_demo

    settings = DemoSettings.quick() if quick else None
    found = run_demo(out, seed=seed, settings=settings, stage=lambda title: _stage(told, title))
    answer = answer_console()
    answer.print(_reconstruction_table(found.reconstructions))
    answer.print(summary_table(found.summary))
    for run in found.zoo:
        answer.print(summary_table(run.summary))
    answer.print(found.told, soft_wrap=True)
    told.print(f"the demo took {time.perf_counter() - begun:.0f} s")
    answer.print(f"open {found.page}", soft_wrap=True)


@contextmanager
def _stage(told: Console, title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Draw a bar on a terminal while a stage lasts; leave one line with its time."""
    begun = time.perf_counter()
    if told.is_terminal:
        with drawn_bars(told, is_transient=True) as tell:
            tell(title, 0, None)
            yield lambda done, total, words: tell(title, done, total, words)
    else:
        told.print(f"{title} ...", soft_wrap=True)
        yield lambda done, total, words: None
    told.print(f"{title}: {time.perf_counter() - begun:.1f} s", soft_wrap=True)


def _reconstruction_table(rows: Sequence["ReconstructionRow"]) -> Table:
    table = Table(
        title=f"Reconstructions of test slices, protocol {rows[0].protocol}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("reconstruction")
    for at in sorted({row.acceleration for row in rows}):
        table.add_column(f"SSIM at {at:g}x", justify="right")
        table.add_column(f"PSNR at {at:g}x", justify="right")
    for name in dict.fromkeys(row.reconstruction for row in rows):
        own = sorted((r for r in rows if r.reconstruction == name), key=lambda r: r.acceleration)
        table.add_row(name, *(text for r in own for text in (f"{r.ssim:.4f}", f"{r.psnr:.2f}")))
    return table
