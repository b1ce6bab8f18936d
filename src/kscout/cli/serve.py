"""`kscout serve`: sessions over HTTP, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from kscout.cli.console import stopping
from kscout.cli.evaluate import RECONSTRUCTION_WORDS
from kscout.cli.options import Device
from kscout.names import POLICIES

_POLICY = POLICIES.words("a run folder", "a weights file", "a zoo name", "LABEL=PATH")
_SEVERAL = "Any number of times: sessions take the first, the page offers all."


def serve(
    reconstructor: Annotated[
        list[str], typer.Option(help=f"{RECONSTRUCTION_WORDS} {_SEVERAL}", show_default=False)
    ],
    policy: Annotated[list[str], typer.Option(help=f"{_POLICY}. {_SEVERAL}", show_default=False)],
    data: Annotated[Path | None, typer.Option(help="A store whose slices the page offers.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    mrd_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of MRD streams; 0 takes a free one.")
    ] = 0,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name clients may call it by; any number of times.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Folder of sessions, continued after a restart.")
    ] = None,
    most_sessions: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 100,
    idle_s: Annotated[float, typer.Option(min=1, help="Close a session idle so long.")] = 3600,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="SEED", help="Draw columns by a policy's probabilities, by this seed."
        ),
    ] = None,
    deadline_s: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds after which --fallback answers.")
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(metavar="POLICY", help="A fixed order, for a policy that is late or fails."),
    ] = "center-out",
    device: Device = "auto",
) -> None:
    """Serve a page to steer acquisitions, and sessions by REST, WebSocket and MRD streams.

    Prints its addresses as JSON when ready.

    Example: kscout serve --reconstructor runs/unet --policy runs/greedy-seed0 --keep sessions
    """
    from kscout.serve.desk import Limits, Usual
    from kscout.serve.run import fallback_maker
    from kscout.serve.run import serve as run

    with stopping(lambda: _told_sessions(keep)):
        run(
            *(reconstructor, policy),
            data=data,
            host=host,
            port=port,
            mrd_port=mrd_port,
            device=device,
            keep=keep,
            limits=Limits(n_sessions=most_sessions, idle_s=idle_s),
            usual=Usual(sample, deadline_s, fallback_maker(fallback)),
            allowed_hosts=allow_host or (),
            on_ready=lambda line: typer.echo(line),
        )


def _told_sessions(keep: Path | None) -> str:
    """Return what becomes of the sessions of a service that was stopped."""
    if keep is None:
        return "its sessions are gone; with --keep FOLDER they are continued"
    if not keep.is_dir() or not any(keep.iterdir()):
        return f"it had no sessions to keep in {keep}"
    return f"its sessions are in {keep}; type the same command again to go on with them"
