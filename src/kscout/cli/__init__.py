"""The command line: each command parses, calls one public function and prints its answer.

Modules of kscout are imported inside the commands, so that `kscout --help` does not wait for torch.
"""

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kscout import __version__, names
from kscout.cli import analyze, data, train
from kscout.cli.bench import bench
from kscout.cli.campaign import app as campaign_app
from kscout.cli.demo import demo
from kscout.cli.evaluate import evaluate
from kscout.cli.report import report
from kscout.cli.train_policy import train_policy, train_together
from kscout.errors import KScoutError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

app = typer.Typer(
    name="kscout",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _tell_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"kscout {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def kscout(
    use: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="Load weights that classes of this module wrote; any number of times. The "
            "environment variable KSCOUT_USE holds more, separated by commas.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell it.")
    ] = False,
) -> None:
    """Learn which k-space column an MRI scanner should measure next."""
    for module in use or []:
        names.use(module)


app.command()(demo)
app.add_typer(data.app, name="data", help="Make, import and look at stores of slices.")
train.app.command("policy")(train_policy)
train.app.command("policies")(train_together)
app.add_typer(train.app, name="train", help="Train a reconstructor or a policy.")
app.command()(evaluate)
app.add_typer(analyze.app, name="analyze", help="The paper's analyses, on runs and results.")
app.add_typer(campaign_app, name="campaign", help="Many runs from one file.")
app.command()(report)
app.command()(bench)


def main() -> None:
    """Run the command line; what a user can mend ends in one sentence and exit code 1."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            Console(stderr=True).print("interrupted; type the same command again to go on")
        raise
    except (KScoutError, OSError) as error:
        told = _told(error) if isinstance(error, OSError) else str(error)
        sentence = f"[bold red]error:[/] {escape(told)}"
        Console(stderr=True).print(sentence, highlight=False, soft_wrap=True)
        sys.exit(1)


def _told(error: OSError) -> str:
    """Name the file and what the system says of it."""
    # A rename names two files, and the first is one that kscout wrote aside.
    file = error.filename if error.filename2 is None else error.filename2
    if file is None or error.strerror is None:
        return str(error) or type(error).__name__
    return f"{file}: {error.strerror}"
