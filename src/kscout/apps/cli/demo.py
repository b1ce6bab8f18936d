"""`kscout demo`."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kscout.apps.cli.console import answer_console, console
from kscout.apps.cli.evaluate import summary_table
from kscout.apps.cli.options import from_fields
from kscout.config.bounds import Between

_OPENING = (
    "Policies of the package are evaluated on knees that were not used in training; then a small "
    "U-Net and a small policy are trained: a few minutes on two idle cores. After an interruption, "
    "the same command resumes."
)
_QUICK = "Every part of the demo at the smallest sizes: no number is a result."


@dataclass(frozen=True, kw_only=True)
class _DemoOptions:
    out: Path = Path("runs/demo")
    """Folder for datasets, runs and the page."""
    seed: Annotated[int, Between(0, 2**31)] = 0
    """Random seed of images, initial weights and samples."""
    quick: bool = False
    """Run every part at sizes without meaningful results."""


@from_fields
def demo(options: _DemoOptions) -> None:
    """Run the paper in miniature on procedural knees, and write a page of results.

    After an interruption the same command resumes, and reuses finished runs.

    Example: kscout demo --out runs/demo
    """
    # Threads that wait by spinning occupy the cores of others: with steps as short as the demo's,
    # other programs then slow it down several times.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    begun, log = time.perf_counter(), console(stderr=True)
    log.print(_QUICK if options.quick else _OPENING, soft_wrap=True)
    from kscout.apps.cli.campaign_display import events_shown
    from kscout.apps.demo import run_demo

    result = run_demo(options.out, seed=options.seed, is_quick=options.quick, progress=events_shown)
    answer = answer_console()
    for summary in result.summaries.values():
        answer.print(summary_table(summary))
    answer.print(result.headline.replace("**", ""), soft_wrap=True)
    log.print(f"the demo took {time.perf_counter() - begun:.0f} s")
    answer.print(f"open {result.page}", soft_wrap=True)
