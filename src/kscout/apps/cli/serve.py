"""`kscout serve`: sessions over HTTP, on this machine."""

from pathlib import Path

import typer

from kscout.apps.cli.console import stopping
from kscout.apps.cli.options import from_fields
from kscout.apps.serve.service import ServeSettings


@from_fields
def serve(settings: ServeSettings) -> None:
    """Serve sessions by REST, WebSocket and MRD streams, and a page to control them.

    Prints its addresses as JSON when ready.

    Example: kscout serve --reconstructor runs/unet --policy runs/greedy --keep sessions
    """
    from kscout.apps.serve.run import serve as run

    with stopping(lambda: _outcome_of_sessions(settings.keep)):
        run(settings, on_ready=lambda line: typer.echo(line))


def _outcome_of_sessions(keep: Path | None) -> str:
    """Return the state of the sessions of a service that was stopped."""
    if keep is None:
        return "sessions end with it; with --keep FOLDER they are continued"
    if not keep.is_dir() or not any(keep.iterdir()):
        return f"it had no sessions to store in {keep}"
    return f"its sessions are in {keep}; repeat the same command to continue them"
