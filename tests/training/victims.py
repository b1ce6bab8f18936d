"""Trainings that are killed at moments that no clock decides."""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from training_stores import run_command

from fuzz.forks import in_child, load_modules


def run_trainings(trainings: Sequence[tuple[Sequence[str], str]]) -> list[int]:
    """Run `kscout train` several times, each in its own process, and return their exit codes.

    Args:
        trainings: for each the arguments, and where it kills itself: `write 2`, inside the writing
            of the second checkpoint; `event 700`, at the 700th call or return in the code of
            trainings; or nowhere.
    """
    load_modules()

    def training(words: Sequence[str], dies: str) -> int:
        die(dies)
        run_command(list(words))
        return 0

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        return [
            in_child(lambda words=words, dies=dies: training(words, dies), Path.cwd(), log).code
            for words, dies in trainings
        ]


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
