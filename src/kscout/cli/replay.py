"""`kscout replay`: a recorded scan, played into a service."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from kscout.cli.console import answer_console, stopping
from kscout.cli.options import AsJson


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An MRD file of Cartesian lines.")],
    to: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where `kscout serve` takes MRD streams.")
    ],
    order: Annotated[
        Literal["asked", "file"],
        typer.Option(help="Send the lines that are asked for, or all as they lie in the file."),
    ] = "asked",
    budget: Annotated[
        int | None, typer.Option(help="Columns per slice; a quarter of them where not given.")
    ] = None,
    n_initial: Annotated[
        int | None, typer.Option(help="Central columns measured first; else an eighth of them.")
    ] = None,
    columns_per_step: Annotated[int, typer.Option(min=1, help="Columns asked for at once.")] = 1,
    header: Annotated[Path | None, typer.Option(help="XML header, where FILE has none.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="KSCOUT_TOKEN", help="The token of the service.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for images, .npy and .png.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play a recorded MRD file into a running service, and print which columns it chose.

    Example: kscout replay scan.mrd --to 127.0.0.1:9002 --budget 32 --n-initial 16 --out images
    """
    from kscout.serve.replay import replay as play

    given: dict[str, int | str | None] = {
        **{"budget": budget, "n_initial": n_initial, "columns_per_step": columns_per_step},
        "token": token,
    }
    config = {name: value for name, value in given.items() if value is not None}
    closes = "the service closes what it has of the scan; typed again, it is played anew"
    with stopping(lambda: closes):
        played = play(file, to, config=config, order=order, header=header, out=out)
    told = [{"name": x.name, "chosen": x.chosen, "measured": x.measured} for x in played]
    if as_json:
        typer.echo(json.dumps(told))
        return
    for x in played:
        late = f" ({x.n_late} late)" if x.n_late else ""
        chosen = " ".join(str(column) for column in x.chosen)
        answer_console().print(f"{x.name}: chose {chosen}{late}", soft_wrap=True)
