"""One run, as a worker does it: under its folder's lock, in a process that dies with the worker."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, final

from kscout.campaign import supervise
from kscout.campaign.nodes import Node
from kscout.campaign.state import DONE, FAILED, NODE, Record, is_done, locked
from kscout.files import now, write_json, write_text

_TAIL_BYTES = 8192


@final
@dataclass(frozen=True)
class Task:
    """All that a worker needs to know about a run; it may be another machine's worker."""

    key: str
    title: str
    cwd: Path
    """The folder that every other path is relative to."""
    folder: Path
    product: Path
    command: tuple[str, ...]
    """Arguments of `kscout`."""
    needs: tuple[Path, ...]
    """Files that are there when the inputs are."""
    files: Mapping[str, str]
    record: Record
    """Content of `node.json`."""
    program: tuple[str, ...] = ()
    """What is run instead of kscout, for tests."""
    environment: Mapping[str, str] | None = None
    attempt: int = 1


@final
@dataclass(frozen=True)
class Result:
    """How a run ended."""

    key: str
    is_done: bool
    seconds: float = 0.0
    reason: str = ""
    """Why it failed, in a sentence."""
    is_final: bool = False
    """Another attempt would fail likewise."""


def task_of(node: Node, needs: tuple[Path, ...], **options: object) -> Task:
    """Return what a worker needs to know about a run of a plan."""
    return Task(
        key=node.key,
        title=node.title,
        cwd=Path.cwd(),
        folder=node.folder,
        product=node.output / node.product,
        command=node.command,
        needs=needs,
        files=node.files,
        record=node.record(),
        **options,  # type: ignore[arg-type]
    )


def run_task(task: Task) -> Result:
    """Do a run, unless it is done already; what goes wrong is told in the result."""
    folder, product = task.cwd / task.folder, task.cwd / task.product
    try:
        # Waiting, because the processes of a killed worker may take a moment to be gone.
        with locked(folder, wait=True) as lock:
            if is_done(folder, product):
                return Result(task.key, is_done=True)
            return _run_locked(task, folder, product, lock)
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or folder})"
        return Result(task.key, is_done=False, reason=reason)


def _run_locked(task: Task, folder: Path, product: Path, lock: int) -> Result:
    for path in task.needs:
        if not (task.cwd / path).is_file():
            reason = f"{path} is gone since the campaign began; run it again, or restore the file"
            return _failed(task, folder, reason, is_final=True)
    started = time.time()
    (folder / FAILED).unlink(missing_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    for name, text in task.files.items():
        write_text(folder / name, text)
    write_json(folder / NODE, {**task.record, "started": now(), "started_s": started})
    code = _run_command(task, folder, lock)
    seconds = time.time() - started
    if code == 0 and product.is_file():
        write_json(folder / DONE, {"date": now(), "seconds": round(seconds, 2)})
        return Result(task.key, is_done=True, seconds=seconds)
    return _failed(task, folder, _reason(folder / "log.txt", code, product))


def _run_command(task: Task, folder: Path, lock: int) -> int:
    program = task.program or (sys.executable, "-m", "kscout")
    command = [*program, *task.command]
    # Lines of progress should be in the log at once, and sentences on one line.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "500"}
    environment |= task.environment or {}
    with (folder / "log.txt").open("ab") as log:
        _write_head(log, task, command)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervise.__file__, str(lock), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
            cwd=task.cwd,
            env=environment,
        )
        try:
            return process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def _write_head(log: IO[bytes], task: Task, command: list[str]) -> None:
    head = f"== {now()}, attempt {task.attempt}: {shlex.join(command)}\n"
    log.write(head.encode())
    log.flush()


def _failed(task: Task, folder: Path, reason: str, *, is_final: bool = False) -> Result:
    record = {"date": now(), "reason": reason, "attempt": task.attempt}
    write_json(folder / FAILED, record)
    return Result(task.key, is_done=False, reason=reason, is_final=is_final)


def _reason(log: Path, code: int, product: Path) -> str:
    """Return the last line that a failed command wrote, or what its end means."""
    if code == 0:
        return f"the command ended well, but did not write {product}"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if code > 128:
        return f"killed by signal {code - 128}, often because memory ran out"
    return last if last and not last.startswith("== ") else f"exit code {code}"
