"""Trainings that are killed at moments that no clock decides.

As a script it reads commands from standard input and runs one after the other, each in a process of
its own that is forked from one that has torch loaded.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType


def run_trainings(trainings: Sequence[tuple[Sequence[str], str]]) -> list[int]:
    """Run `kscout train` several times, each in its own process, and return their exit codes.

    Args:
        trainings: for each the arguments, and where it kills itself: `write 2`, inside the writing
            of the second checkpoint; `event 700`, at the 700th call or return in the code of
            trainings; or nowhere.
    """
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(list(trainings)),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main() -> None:
    """Run what standard input asks for, and print the exit codes."""
    # The first optimizer of a process imports torch._dynamo, which takes seconds.
    trainings = ("reconstructor", "policy", "joint.train")
    for module in ("torch._dynamo", *(f"kscout.training.{name}" for name in trainings)):
        importlib.import_module(module)
    from training_stores import run_command

    codes = []
    for words, dies in json.load(sys.stdin):
        child = os.fork()
        if child == 0:
            die(dies)
            run_command(words)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.write(json.dumps(codes))


def die(where: str) -> None:
    """Kill this process, now or later, as `run_trainings` was told."""
    kind, _, number = where.partition(" ")
    if kind == "write":
        die_in_write(int(number))
    elif kind == "event":
        die_at_event(int(number))


def die_in_write(number: int) -> None:
    """Be killed before the numbered checkpoint takes its place; of an odd one half is written."""
    n_written = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal n_written
        if event != "os.rename" or ".checkpoint.pt." not in str(arguments[0]):
            return
        n_written += 1
        if n_written == number:
            aside = Path(str(arguments[0]))
            if number % 2:
                os.truncate(aside, aside.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def die_at_event(number: int) -> None:
    """Be killed at the numbered call or return in the code of trainings."""
    import kscout.training

    code, n_events = str(Path(kscout.training.__file__).parent), 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal n_events
        n_events += frame.f_code.co_filename.startswith(code)
        if n_events == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


if __name__ == "__main__":
    main()
