"""The command line: each command parses options, calls one public function and prints its result.

Modules of kscout are imported inside the commands, so that `kscout --help` does not load torch.
"""

import errno
import logging
import os
import signal
import sys
from collections.abc import Iterable, MutableMapping
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kscout import __version__, names
from kscout.apps.cli import data, train
from kscout.apps.cli.campaign import app as campaign_app
from kscout.apps.cli.console import TERMINATED, Commands, PlainLines, Stopped, console, printable
from kscout.apps.cli.evaluate import app as analyses_app
from kscout.apps.cli.evaluate import evaluate, report
from kscout.apps.cli.export import app as export_app
from kscout.apps.cli.package import demo, zoo
from kscout.apps.cli.serve import replay, serve
from kscout.errors import ConfigError, KScoutError

_STOPPED: dict[object, str] = {128 + signal.SIGINT: "interrupted", TERMINATED: "terminated"}

app = typer.Typer(
    name="kscout",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Panels need more than 80 characters for names of options, and would truncate them.
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> bool:
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
            help="Allow weights files with classes of this module; repeatable. The "
            "environment variable KSCOUT_USE names more, separated by commas.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Learn which k-space column an MRI scanner should measure next.

    Example: kscout demo
    """
    for module in use or []:
        names.use(module)


app.command()(demo)
app.add_typer(data.app, name="data")
app.add_typer(train.app, name="train")
app.command()(evaluate)
app.add_typer(analyses_app, name="analyze")
app.add_typer(campaign_app, name="campaign")
app.command()(report)
app.add_typer(export_app, name="export")
app.command()(serve)
app.command()(replay)
app.command()(zoo)


def main() -> None:
    """Run the command line; an error of the user prints one sentence, with exit code 1."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # The caller has closed it.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper):  # File names may contain invalid characters.
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[PlainLines()])
    # What a training has saved, and where it resumes.
    logging.getLogger("kscout.training").setLevel(logging.INFO)
    # Under torchrun a process may block in gloo, waiting for others that have ended; it must exit.
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        _run()
    except SystemExit as stop:
        if stop.code in _STOPPED:
            resumes = "repeat the same command to resume"
            what = stop.outcome if isinstance(stop, Stopped) else resumes
            console(stderr=True).print(f"{_STOPPED[stop.code]}; {what}", soft_wrap=True)
        raise
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        # Text from a file must not contain control characters, nor look like a line of kscout.
        shown = printable(sentence).replace("\n", r"\n")
        line = Text.assemble(("error:", "bold red"), f" {shown}")
        console(stderr=True).print(line, soft_wrap=True)
        sys.exit(1)


def _run() -> None:
    try:
        check_file_names(sys.argv)
        check_environment(os.environ)
        limit_threads(os.environ, cpu_quota())
        app()
    # Before typer runs a command, which turns it into an exit code.
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


_NUMBERS = {
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK"), "torchrun sets it to a number"),
    "SOURCE_DATE_EPOCH": "the date of figures, in seconds since 1970",
}


def check_environment(environment: MutableMapping[str, str]) -> None:
    """Raise an error for variables without a meaning; choose a backend of figures for files."""
    for name, meaning in _NUMBERS.items():
        value = environment.get(name, "0")
        if not (value.isascii() and value.isdigit()):
            raise ConfigError(f"{name} is {value!r} ({meaning}); correct it or unset it")
    environment["MPLBACKEND"] = "agg"
    for module in filter(None, map(str.strip, environment.get("KSCOUT_USE", "").split(","))):
        names.use(module)


def check_file_names(given: Iterable[str], encoding: str = sys.getfilesystemencoding()) -> None:
    """Raise an error for names that the locale cannot read."""
    for name in [*given, str(Path.cwd())]:
        if encoding != "utf-8" and not name.isascii():
            raise ConfigError(
                f"the name {name!a} cannot be read in this locale, whose file names are "
                f"{encoding}; set PYTHONUTF8=1, or a locale with UTF-8"
            )


def limit_threads(environment: MutableMapping[str, str], quota: float | None) -> None:
    """Limit threads to the processors that a container grants, unless the user has set a number.

    The number may change the last digits of a result, so it only depends on machine and container;
    torch reads it when it is imported.
    """
    if quota is not None and quota < (os.cpu_count() or 1):
        environment.setdefault("OMP_NUM_THREADS", str(max(1, int(quota))))


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the processors that a container grants; None for no limit."""
    try:
        quota, period = (root / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def sentence_of(error: Exception) -> str | None:
    """Return the sentence for an error of the user; None for a bug in kscout."""
    if isinstance(error, KScoutError):
        return str(error)
    if isinstance(error, OSError):
        return _file_fault(error)
    if isinstance(error, ValueError) and "TORCH_LOGS" in str(error):
        return f"TORCH_LOGS is {os.environ.get('TORCH_LOGS')!r}; correct it or unset it"
    is_full = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    )
    if not is_full:
        return None
    reason = str(error).strip().partition("\n")[0][:300] or "an allocation failed"
    return (
        f"memory ran out ({reason}); lower --batch-size (training.batch_size), the trajectories "
        "or the size of the network, or end other programs"
    )


_OUT_OF_MEMORY = ("not enough memory", "out of memory", "bad_alloc", "can't allocate memory")


def _file_fault(error: OSError) -> str:
    # A rename names two files, of which the first is kscout's temporary file.
    file = error.filename if error.filename2 is None else error.filename2
    if file is None or error.strerror is None:
        text = error.strerror or str(error) or type(error).__name__
    else:
        text = f"{file}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}; free some space there and repeat the same command, which resumes"
    advice = _FILE_ADVICE.get(error.errno or 0)
    return text if file is None or advice is None else f"{text}; {advice}"


_NOT_YOURS = "choose another folder in which you may read and write files (--out)"
_FILE_ADVICE = {
    errno.EEXIST: "choose another name (--out), because an existing file is not replaced",
    errno.ENOTDIR: "choose another name (--out), because a part of this path is a file",
    errno.EISDIR: "name a file instead, in this folder or elsewhere",
    errno.ENOENT: "choose a folder that exists or can be created",
    **dict.fromkeys((errno.EPERM, errno.EACCES, errno.EROFS), _NOT_YOURS),
}
"""Advice for files that cannot be used, by error code of the system."""
