"""`kscout bench`."""

import json
from typing import Annotated

import typer

from kscout.cli.options import AsJson, Device


def bench(
    device: Device = "auto",
    size: Annotated[
        list[int] | None, typer.Option(help="Image size; repeatable. [default: 64, 128]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer slices and repetitions, for a rough impression.")
    ] = False,
    scaling: Annotated[
        bool,
        typer.Option("--scaling", help="Also time batches of growing size, about a minute more."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure speed: batches against a plain implementation, and each part against its limit.

    Example: kscout bench --json
    """
    from kscout.bench import SIZES, print_tables, run_benchmarks

    record = run_benchmarks(device=device, sizes=tuple(size or SIZES), quick=quick, scaling=scaling)
    if as_json:
        typer.echo(json.dumps(record))
    else:
        print_tables(record)
