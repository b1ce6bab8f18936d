"""The command line: each command parses, calls one public function and prints its answer.

Modules of kscout are imported inside the commands, so that `kscout --help` does not wait for torch.
"""

import errno
import logging
import os
import signal
import sys
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.text import Text

from kscout import __version__, names
from kscout.cli import analyze, data, train
from kscout.cli.bench import bench
from kscout.cli.campaign import app as campaign_app
from kscout.cli.console import TERMINATED, Commands, Stopped, console, printable
from kscout.cli.data_export import export as export_images
from kscout.cli.demo import demo
from kscout.cli.evaluate import evaluate
from kscout.cli.export import app as export_app
from kscout.cli.replay import replay
from kscout.cli.report import report
from kscout.cli.serve import serve
from kscout.cli.threads import share_the_machine
from kscout.cli.train_joint import train_joint
from kscout.cli.train_policy import train_policy, train_together
from kscout.cli.zoo import zoo
from kscout.errors import KScoutError

_COMPUTING = {"train", "evaluate", "analyze", "demo", "export", "serve"}
"""Commands that compute in this process."""
_STOPPED: dict[object, str] = {128 + signal.SIGINT: "interrupted", TERMINATED: "terminated"}

app = typer.Typer(
    name="kscout",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Panels leave 80 characters too few for names of options, and cut them.
    rich_markup_mode=None,
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
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Learn which k-space column an MRI scanner should measure next."""
    for module in use or []:
        names.use(module)


app.command()(demo)
data.app.command("export")(export_images)
app.add_typer(data.app, name="data", help="Make, import, look at and export stores of slices.")
train.app.command("policy")(train_policy)
train.app.command("policies")(train_together)
train.app.command("joint")(train_joint)
app.add_typer(train.app, name="train", help="Train a reconstructor, a policy, or both.")
app.command()(evaluate)
app.add_typer(analyze.app, name="analyze", help="The paper's analyses, on runs and results.")
app.add_typer(campaign_app, name="campaign", help="Many runs from one file.")
app.command()(report)
app.add_typer(export_app, name="export", help="Files to take away: scan tables, sequences, ONNX.")
app.command()(serve)
app.command()(replay)
app.command()(zoo)
app.command()(bench)


def main() -> None:
    """Run the command line; what a user can mend ends in one sentence and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # Names of files may be no text.
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Under torchrun a process may wait inside of gloo for others that are gone, and must end there.
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    if _COMPUTING & set(sys.argv) and "--help" not in sys.argv:
        share_the_machine()
    try:
        app()
    except SystemExit as stop:
        if stop.code in _STOPPED:
            goes_on = "type the same command again to go on"
            what = stop.told if isinstance(stop, Stopped) else goes_on
            console(stderr=True).print(f"{_STOPPED[stop.code]}; {what}", soft_wrap=True)
        raise
    except Exception as error:
        told = told_as(error)
        if told is None:
            raise
        # What a file holds may not command the terminal, nor look like a line of ours.
        shown = printable(told).replace("\n", r"\n")
        line = Text.assemble(("error:", "bold red"), f" {shown}")
        console(stderr=True).print(line, soft_wrap=True)
        sys.exit(1)


def told_as(error: Exception) -> str | None:
    """Return the sentence for a failure that a user can mend; None for a mistake of kscout's."""
    if isinstance(error, KScoutError):
        return str(error)
    if isinstance(error, OSError):
        return _file_fault(error)
    is_full = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    )
    if not is_full:
        return None
    reason = str(error).strip().partition("\n")[0][:300] or "an array could not be had"
    return (
        f"memory ran out ({reason}); lower --batch-size (training.batch_size), the trajectories "
        "or the size of the network, or end other programs"
    )


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "bad_alloc", "can't allocate memory")


def _file_fault(error: OSError) -> str:
    """Name the file and what the system says of it."""
    # A rename names two files, and the first is one that kscout wrote aside.
    file = error.filename if error.filename2 is None else error.filename2
    if file is None or error.strerror is None:
        told = str(error) or type(error).__name__
    else:
        told = f"{file}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{told}; make room there and type the same command again: it goes on"
    advice = _FILE_ADVICE.get(error.errno or 0)
    return told if file is None or advice is None else f"{told}; {advice}"


_NOT_YOURS = "choose another place, of which you may read and write the files (--out)"
_FILE_ADVICE = {
    errno.EEXIST: "choose another name (--out): what has this one is not replaced",
    errno.ENOTDIR: "choose another name (--out): a part of this path is a file, and no folder",
    errno.EISDIR: "name a file instead, in this folder or elsewhere",
    errno.ENOENT: "choose a place that exists, or in which a folder can be made",
    **dict.fromkeys((errno.EPERM, errno.EACCES, errno.EROFS), _NOT_YOURS),
}
"""What to do about a file that cannot be had, by what the system says of it."""
