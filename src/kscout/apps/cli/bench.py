"""`kscout bench`."""

import json
from dataclasses import dataclass

import typer

from kscout.apps.cli.options import AsJson, Device, from_fields


@dataclass(frozen=True, kw_only=True)
class _BenchOptions:
    device: Device = "auto"
    size: tuple[int, ...] = ()
    """Image size; repeatable. [default: 64, 128]"""
    quick: bool = False
    """Fewer slices and repetitions, for a rough impression."""
    scaling: bool = False
    """Also time batches of growing size, about a minute more."""
    as_json: AsJson = False


@from_fields
def bench(options: _BenchOptions) -> None:
    """Measure speed: batches against a plain implementation, and each part against its limit.

    Example: kscout bench --json
    """
    from kscout.apps.bench import SIZES, print_tables, run_benchmarks

    record = run_benchmarks(
        device=options.device,
        sizes=options.size or SIZES,
        quick=options.quick,
        scaling=options.scaling,
    )
    if options.as_json:
        typer.echo(json.dumps(record))
    else:
        print_tables(record)
