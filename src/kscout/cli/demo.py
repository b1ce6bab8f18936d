"""`kscout demo`."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the stores, runs and page.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Keys everything that is drawn.")] = 0,
) -> None:
    """Run the paper in miniature on embedded knees, and end with a page to open.

    Example: kscout demo --out runs/demo
    """
    from kscout.demo import run_demo

    run_demo(out, seed=seed)
