"""`kscout serve`: sessions over HTTP, on this machine, and `kscout replay`, which sends scans."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from kscout.apps.cli.console import print_result, stopping
from kscout.apps.cli.options import AsJson, from_fields
from kscout.apps.serve.service import ServeSettings
from kscout.config.bounds import AtLeast, Form
from kscout.errors import needs_extra


@from_fields
def serve(settings: ServeSettings) -> None:
    """Serve sessions by REST, WebSocket and MRD streams, and a page to control them.

    Prints its addresses as JSON when ready.

    Example: kscout serve --reconstructor runs/unet --policy runs/greedy --keep sessions
    """
    with needs_extra("the service", "serve"):
        from kscout.apps.serve.run import serve as run
    with stopping(lambda: _outcome_of_sessions(settings.keep)):
        run(settings, on_ready=lambda line: typer.echo(line))


def _outcome_of_sessions(keep: Path | None) -> str:
    if keep is None:
        return "sessions end with it; with --keep FOLDER they are continued"
    if not keep.is_dir() or not any(keep.iterdir()):
        return f"it had no sessions to store in {keep}"
    return f"its sessions are in {keep}; repeat the same command to continue them"


@dataclass(frozen=True, kw_only=True)
class _ReplayOptions:
    file: Annotated[Path, Form("FILE", is_argument=True)]
    """An MRD file of Cartesian lines."""
    to: Annotated[str, Form("HOST:PORT")]
    """Address of `kscout serve` for MRD streams."""
    order: Literal["asked", "file"] = "asked"
    """Send the requested lines, or all in the order of the file."""
    budget: int | None = None
    """Columns per slice; a quarter of all by default."""
    n_initial: int | None = None
    """Central columns measured first; an eighth by default."""
    columns_per_step: Annotated[int, AtLeast(1)] = 1
    """Columns per request."""
    header: Path | None = None
    """XML header, if FILE has none."""
    token: Annotated[str | None, Form(envvar="KSCOUT_TOKEN")] = None
    """The token of the service."""
    out: Path | None = None
    """Folder for images, .npy and .png."""
    as_json: AsJson = False


@from_fields
def replay(options: _ReplayOptions) -> None:
    """Send a recorded MRD file to a running service, and print the columns that it selected.

    Example: kscout replay scan.mrd --to 127.0.0.1:9002 --budget 32 --n-initial 16 --out images
    """
    from kscout.apps.serve.mrd_replay import replay as play

    names = ("budget", "n_initial", "columns_per_step", "token")
    config = {name: one for name in names if (one := getattr(options, name)) is not None}
    closes = "the service closes its part of the scan; the same command sends it from the start"
    with stopping(lambda: closes):
        played = play(
            *(options.file, options.to),
            config=config,
            order=options.order,
            header=options.header,
            out=options.out,
        )
    records = [{"name": x.name, "chosen": x.chosen, "measured": x.measured} for x in played]
    lines = [
        f"{x.name}: chose {' '.join(map(str, x.chosen))}" + f" ({x.n_late} late)" * bool(x.n_late)
        for x in played
    ]
    print_result(records, *lines, as_json=options.as_json)
