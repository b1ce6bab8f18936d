"""`kscout bench`."""

from typing import Annotated

import typer


def bench(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure speed: each part beside its limit, and whole batches beside a plain implementation.

    Example: kscout bench --json
    """
    from kscout.bench import print_benchmarks

    print_benchmarks(device=device, as_json=as_json)
