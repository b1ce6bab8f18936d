"""`kscout demo` and `kscout zoo`: what comes with the package."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kscout.apps.cli.console import console, print_result
from kscout.apps.cli.evaluate import summary_table
from kscout.apps.cli.options import AsJson, from_fields
from kscout.config.bounds import Between, Form

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
    tables = map(summary_table, result.summaries.values())
    print_result(None, *tables, result.headline.replace("**", ""))
    log.print(f"the demo took {time.perf_counter() - begun:.0f} s")
    print_result(None, f"open {result.page}")


@dataclass(frozen=True, kw_only=True)
class _ZooOptions:
    name: Annotated[str | None, Form(is_argument=True)] = None
    """Entry whose card is printed; by default all are listed."""
    as_json: AsJson = False


@from_fields
def zoo(options: _ZooOptions) -> None:
    """List the trained weights of the package, or print the card of one.

    Commands accept these names wherever they accept weights. Columns are those at the start, and
    those acquired after it.

    Example: kscout zoo knee-unet
    """
    from kscout.compatibility import entry_facts
    from kscout.zoo import ZOO, zoo_card

    if (name := options.name) is not None:
        card = zoo_card(name)
        facts = {"name": name, "kind": ZOO[name], "card": card}
        typer.echo(json.dumps(facts) if options.as_json else card)
        return
    entries = {entry: entry_facts(entry) for entry in ZOO}
    table = Table("name", box=None, padding=(0, 1), pad_edge=False)
    for column in next(iter(entries.values())):
        table.add_column(column)
    for entry, own in entries.items():
        table.add_row(entry, *own.values())
    table.columns[0].no_wrap = True
    print_result(entries, table, as_json=options.as_json)
