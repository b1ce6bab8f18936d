"""Work in a process of its own: forked from one that has torch loaded, bounded, and watched."""

import gc
import importlib
import os
import resource
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import typer

from campaign import fake_kscout
from kscout.apps.campaign.task import Task
from undrawn import paint_once

TRACEBACK = 99
"""Exit code of work that ended in an exception."""
INVALID = 98
"""Exit code of a command that says it succeeded, though what it wrote cannot be used."""

_MODULES = [
    *("torch._dynamo", "matplotlib.pyplot", "nibabel", "pydicom", "pydicom.pixels", "h5py"),
    *("scipy.stats", "kscout.training.joint.train"),
    *("kscout.training.reconstructor", "kscout.training.policy", "kscout.evaluation.compare"),
    *("kscout.evaluation.analyses", "kscout.apps.report.build"),
    *("kscout.data.generate", "kscout.apps.cli"),
    *("kscout.data.importing.folder", "kscout.data.montage", "kscout.apps.campaign.state"),
    *("kscout.apps.cli.campaign_display", "kscout.data.makers.knee"),
    *(f"matplotlib.backends.backend_{name}" for name in ("agg", "pdf", "svg")),
]


def load_modules() -> None:
    """Import what commands need, so that no child does."""
    for module in _MODULES:
        importlib.import_module(module)


def prepare(folder: Path, commands: Sequence[Sequence[str]]) -> None:
    """Import what commands need and run a few, so that no child pays for it.

    Args:
        folder: where the commands run.
        commands: they must succeed, and start no threads.
    """
    warnings.simplefilter("ignore")
    typer.main.get_command = cache(typer.main.get_command)
    load_modules()
    paint_once()
    import torch

    torch.set_num_threads(1)
    with chdir(folder), Path(os.devnull).open("w") as silence, redirect_stdout(silence):
        for words in commands:
            if code := command(words):
                raise RuntimeError(f"kscout {' '.join(words)} ended with {code}")
    gc.collect()
    gc.freeze()


@final
@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code, or the negative number of the signal that ended it."""
    is_hung: bool
    """It was ended because it took longer than allowed."""
    output: str
    """All that it printed."""
    peak_mib: float
    """The most memory that it held, with what it was forked with."""


def in_child(
    work: Callable[[], int], folder: Path, log: Path, *, limit_s: float = 0, n_bytes: int = 0
) -> Ended:
    """Call a function in a child, in a folder, and wait for it.

    Args:
        work: returns the exit code.
        folder: the working directory.
        log: the file that takes what it prints.
        limit_s: a backstop against hanging; 0 waits for as long as it takes.
        n_bytes: what it may allocate beyond what it is forked with; 0 is no bound.
    """
    child = start(work, folder, log, n_bytes)
    is_hung = False
    if limit_s:
        watch = os.pidfd_open(child)
        is_hung = not select.select([watch], [], [], limit_s)[0]
        os.close(watch)
    if is_hung:
        os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    text = log.read_bytes().decode(errors="replace")
    return Ended(os.waitstatus_to_exitcode(status), is_hung, text, used.ru_maxrss / 1024)


def start(work: Callable[[], int], folder: Path, log: Path, n_bytes: int = 0) -> int:
    """Start a child as `in_child` does; return its process number, which is its group's too."""
    child = os.fork()
    if child == 0:
        _live(work, folder, log, n_bytes)
    # Whoever comes first: from here on the group exists, whether or not the child has run.
    try:
        os.setpgid(child, child)
    except OSError:
        pass
    return child


def _live(work: Callable[[], int], folder: Path, log: Path, n_bytes: int) -> None:
    code = TRACEBACK
    try:
        os.setpgid(0, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = sys.__stderr__ = os.fdopen(
            2, "w", encoding="utf-8", errors="backslashreplace", closefd=False
        )
        os.chdir(folder)
        if n_bytes:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + n_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            try:
                file.flush()
            except (OSError, ValueError):
                code = TRACEBACK
        os._exit(code)


def run_task(task: Task, lock: int) -> int:
    """Run the command of a campaign's task as it is, in a child that need not import torch.

    Tests put this in place of `kscout.apps.campaign.task._run_command`.
    """
    log = task.folder / "fork.log"

    def work() -> int:
        os.environ.update(task.environment)
        return command(task.node.command)

    return in_child(work, task.cwd, log).code


def stand_in(task: Task, lock: int) -> int:
    """Write what the command of a campaign's task would leave; in place of `_run_command`."""
    code = fake_kscout.main(list(task.node.command))
    (task.folder / "log.txt").touch()
    return code


def command(words: Sequence[str]) -> int:
    """Run kscout's command line in this process; return its exit code."""
    from kscout.apps.cli import main

    sys.argv = ["kscout", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
