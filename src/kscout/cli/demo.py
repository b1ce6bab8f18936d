"""`kscout demo`."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kscout.cli.console import answer_console, console
from kscout.cli.evaluate import summary_table

_OPENING = (
    "Policies that ship with kscout are tried on knees that they never saw; then a small U-Net and "
    "a small policy are trained here: a few minutes on two idle cores. If it is stopped, the same "
    "command continues."
)
_QUICK = "Every part of the demo at the smallest sizes: nothing is learned in so few steps."


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the store, the runs and the page.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Keys everything that is drawn.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run every part at sizes that learn nothing.")
    ] = False,
) -> None:
    """Run the paper in miniature on drawn knees, and end with a page to open.

    Stop it and type the same again: it continues, and reuses what is done.

    Example: kscout demo --out runs/demo
    """
    # Threads that wait by spinning take the processor from those that work: with steps as short as
    # the demo's, other programs make that several times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    begun, told = time.perf_counter(), console(stderr=True)
    told.print(_QUICK if quick else _OPENING, soft_wrap=True)
    from kscout.cli.campaign_display import telling
    from kscout.demo import run_demo

    found = run_demo(out, seed=seed, is_quick=quick, progress=telling)
    answer = answer_console()
    for summary in found.summaries.values():
        answer.print(summary_table(summary))
    answer.print(found.headline.replace("**", ""), soft_wrap=True)
    told.print(f"the demo took {time.perf_counter() - begun:.0f} s")
    answer.print(f"open {found.page}", soft_wrap=True)
