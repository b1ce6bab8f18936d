"""`kscout replay`: sends a recorded scan to a service."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from kscout.cli.console import answer_console, stopping
from kscout.cli.options import AsJson


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An MRD file of Cartesian lines.")],
    to: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of `kscout serve` for MRD streams.")
    ],
    order: Annotated[
        Literal["asked", "file"],
        typer.Option(help="Send the requested lines, or all in the order of the file."),
    ] = "asked",
    budget: Annotated[
        int | None, typer.Option(help="Columns per slice; a quarter of all by default.")
    ] = None,
    n_initial: Annotated[
        int | None, typer.Option(help="Central columns measured first; an eighth by default.")
    ] = None,
    columns_per_step: Annotated[int, typer.Option(min=1, help="Columns per request.")] = 1,
    header: Annotated[Path | None, typer.Option(help="XML header, if FILE has none.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="KSCOUT_TOKEN", help="The token of the service.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for images, .npy and .png.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a recorded MRD file to a running service, and print the columns that it selected.

    Example: kscout replay scan.mrd --to 127.0.0.1:9002 --budget 32 --n-initial 16 --out images
    """
    from kscout.serve.replay import replay as play

    given: dict[str, int | str | None] = {
        **{"budget": budget, "n_initial": n_initial, "columns_per_step": columns_per_step},
        "token": token,
    }
    config = {name: value for name, value in given.items() if value is not None}
    closes = "the service closes its part of the scan; the same command sends it from the start"
    with stopping(lambda: closes):
        played = play(file, to, config=config, order=order, header=header, out=out)
    records = [{"name": x.name, "chosen": x.chosen, "measured": x.measured} for x in played]
    if as_json:
        typer.echo(json.dumps(records))
        return
    for x in played:
        late = f" ({x.n_late} late)" if x.n_late else ""
        chosen = " ".join(str(column) for column in x.chosen)
        answer_console().print(f"{x.name}: chose {chosen}{late}", soft_wrap=True)
