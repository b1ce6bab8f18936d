"""Execution of a run in a worker: under its folder's lock, in a process that ends with it."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from kscout.apps.campaign import supervise
from kscout.apps.campaign.nodes import LOG, Node
from kscout.apps.campaign.state import DONE, FAILED, NODE, is_done
from kscout.files import now, take_lock, write_json, write_text

_TAIL_BYTES = 8192


@final
@dataclass(frozen=True)
class Task:
    """Everything that a worker needs for a run, possibly on another machine."""

    node: Node
    needs: tuple[Path, ...] = ()
    """Files that exist if the inputs do."""
    program: tuple[str, ...] = ()
    """Command instead of kscout, for tests."""
    environment: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    cwd: Path = field(default_factory=Path.cwd)
    """The folder that all other paths are relative to."""

    @property
    def folder(self) -> Path:
        return self.cwd / self.node.folder

    @property
    def product(self) -> Path:
        """Return the file that proves that the run is complete."""
        return self.cwd / self.node.output / self.node.product


@final
@dataclass(frozen=True)
class Result:
    """Outcome of a task."""

    key: str
    is_done: bool
    seconds: float = 0.0
    reason: str = ""
    """Reason of the failure, in a sentence."""
    is_final: bool = False
    """Whether another attempt would fail in the same way."""


def run_task(task: Task) -> Result:
    """Execute an unfinished run; the result contains any error."""
    key = task.node.key
    try:
        # With waiting, because processes of a killed worker may end with a delay.
        lock = take_lock(task.folder, wait=True)
        assert lock is not None
        try:
            if is_done(task.folder, task.product):
                return Result(key, is_done=True)
            return _run_locked(task, lock)
        finally:
            os.close(lock)
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or task.folder})"
        return Result(key, is_done=False, reason=reason)


def _run_locked(task: Task, lock: int) -> Result:
    node, folder = task.node, task.folder
    for path in task.needs:
        if not (task.cwd / path).is_file():
            reason = f"{path} was deleted during the campaign; run it again, or restore the file"
            return _failed(task, reason, is_final=True)
    started = time.time()
    (folder / FAILED).unlink(missing_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    for name, text in node.files.items():
        write_text(folder / name, text)
    write_json(folder / NODE, {**node.record(), "started": now(), "started_s": started})
    code = _run_command(task, lock)
    seconds = time.time() - started
    if code != 0 or not task.product.is_file():
        return _failed(task, _reason(folder / LOG, code, task.product))
    write_json(folder / DONE, {"date": now(), "seconds": round(seconds, 2)})
    return Result(node.key, is_done=True, seconds=seconds)


def _run_command(task: Task, lock: int) -> int:
    program = task.program or (sys.executable, "-P", "-m", "kscout")
    command = [*program, *task.node.command]
    # Lines of progress are logged immediately, and messages are on one line.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "500", **task.environment}
    with (task.folder / LOG).open("ab") as log:
        log.write(os.fsencode(f"== {now()}, attempt {task.attempt}: {shlex.join(command)}\n"))
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervise.__file__, str(lock), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
            cwd=task.cwd,
            env=environment,
        )
        try:
            return process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def _failed(task: Task, reason: str, *, is_final: bool = False) -> Result:
    record = {"date": now(), "reason": reason, "attempt": task.attempt}
    write_json(task.folder / FAILED, record)
    return Result(task.node.key, is_done=False, reason=reason, is_final=is_final)


def _reason(log: Path, code: int, product: Path) -> str:
    """Return the last line of output of a failed command, or the meaning of its exit code."""
    if code == 0:
        return f"the command succeeded, but did not write {product}"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if code > 128:
        return f"killed by signal {code - 128}, often because of too little memory"
    return last if last and not last.startswith("== ") else f"exit code {code}"
