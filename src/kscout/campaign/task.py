"""Execution of runs in a worker: under their folders' locks, in a process that ends with it."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from kscout.campaign import supervise
from kscout.campaign.nodes import LOG, Node
from kscout.campaign.state import DONE, FAILED, NODE, is_done, locked
from kscout.files import now, write_json, write_text

_TAIL_BYTES = 8192


@final
@dataclass(frozen=True)
class Task:
    """Everything that a worker needs for its runs, possibly on another machine."""

    nodes: tuple[Node, ...]
    """One run, or several that one command executes in lockstep."""
    needs: tuple[Path, ...] = ()
    """Files that exist if the inputs do."""
    program: tuple[str, ...] = ()
    """Command instead of kscout, for tests."""
    environment: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    cwd: Path = field(default_factory=Path.cwd)
    """The folder that all other paths are relative to."""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(node.key for node in self.nodes)

    @property
    def folders(self) -> list[Path]:
        return [self.cwd / node.folder for node in self.nodes]

    @property
    def command(self) -> tuple[str, ...]:
        """Return the arguments of `kscout`."""
        first = self.nodes[0]
        if len(self.nodes) == 1 or first.lockstep is None:
            return first.command
        return (*first.lockstep.words, *(word for node in self.nodes for word in node.own_words))

    def product(self, node: Node) -> Path:
        """Return the file that proves that a run is complete."""
        return self.cwd / node.output / node.product


@final
@dataclass(frozen=True)
class Result:
    """Outcome of a task: all its runs succeeded, or none."""

    keys: tuple[str, ...]
    is_done: bool
    seconds: float = 0.0
    reason: str = ""
    """Reason of the failure, in a sentence."""
    is_final: bool = False
    """Whether another attempt would fail in the same way."""


def run_task(task: Task) -> Result:
    """Execute the unfinished runs; the result contains any error."""
    try:
        with ExitStack() as stack:
            # With waiting, because processes of a killed worker may end with a delay.
            locks = [
                stack.enter_context(locked(folder, wait=True)) for folder in sorted(task.folders)
            ]
            waiting = [
                node
                for node in task.nodes
                if not is_done(task.cwd / node.folder, task.product(node))
            ]
            if not waiting:
                return Result(task.keys, is_done=True)
            result = _run_locked(replace(task, nodes=tuple(waiting)), locks)
            return replace(result, keys=task.keys)
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or task.folders[0]})"
        return Result(task.keys, is_done=False, reason=reason)


def _run_locked(task: Task, locks: Sequence[int]) -> Result:
    for path in task.needs:
        if not (task.cwd / path).is_file():
            reason = f"{path} was deleted during the campaign; run it again, or restore the file"
            return _failed(task, reason, is_final=True)
    started = time.time()
    for node, folder in zip(task.nodes, task.folders, strict=True):
        (folder / FAILED).unlink(missing_ok=True)
        (folder / DONE).unlink(missing_ok=True)
        for name, text in node.files.items():
            write_text(folder / name, text)
        write_json(folder / NODE, {**node.record(), "started": now(), "started_s": started})
    code = _run_command(task, locks)
    seconds = time.time() - started
    missing = [path for path in map(task.product, task.nodes) if not path.is_file()]
    if code != 0 or missing:
        product = missing[0] if missing else Path()
        return _failed(task, _reason(task.folders[0] / LOG, code, product))
    for folder in task.folders:
        write_json(folder / DONE, {"date": now(), "seconds": round(seconds, 2)})
    return Result(task.keys, is_done=True, seconds=seconds)


def _run_command(task: Task, locks: Sequence[int]) -> int:
    program = task.program or (sys.executable, "-P", "-m", "kscout")
    command = [*program, *task.command]
    # Lines of progress are logged immediately, and messages are on one line.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "500", **task.environment}
    first, *others = task.folders
    head = f"== {now()}, attempt {task.attempt}: "
    for folder in others:
        with (folder / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{head}in lockstep with {first.name}, see {first / LOG}\n")
    with (first / LOG).open("ab") as log:
        log.write(os.fsencode(f"{head}{shlex.join(command)}\n"))
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervise.__file__, ",".join(map(str, locks)), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=locks,
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
    for folder in task.folders:
        write_json(folder / FAILED, record)
    return Result(task.keys, is_done=False, reason=reason, is_final=is_final)


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
