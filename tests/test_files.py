"""Files are whole and valid, whatever is written to them, and locks end with their processes."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from kscout.files import is_locked, take_lock, write_json


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    value = {"a": [math.nan, 1.5, (np.float64("inf"), -math.inf)], "b": {"c": math.nan, "d": "NaN"}}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text()
    found = json.loads(text, parse_constant=lambda word: f"not JSON: {word}")
    assert found == {"a": [None, 1.5, [None, None]], "b": {"c": None, "d": "NaN"}}


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from kscout.files import take_lock
lock = take_lock(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=[lock])
print(child.pid, flush=True)
time.sleep(60)
"""


def held(folder: Path, child_s: str) -> tuple[subprocess.Popen[str], int]:
    """Start a process that holds a folder's lock, and a child of it that inherits the lock."""
    command = [sys.executable, "-c", HOLDER, str(folder), child_s]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_lock_is_refused_to_a_second_process_and_gone_with_a_killed_one(tmp_path: Path) -> None:
    process, _ = held(tmp_path, "0")
    assert is_locked(tmp_path)
    assert take_lock(tmp_path) is None
    process.kill()
    process.wait()
    lock = take_lock(tmp_path, wait=True)
    assert lock is not None
    os.close(lock)
    assert not is_locked(tmp_path)


def test_a_lock_is_held_as_long_as_a_child_lives(tmp_path: Path) -> None:
    process, child = held(tmp_path, "60")
    process.kill()
    process.wait()
    assert is_locked(tmp_path)
    os.kill(child, signal.SIGKILL)
    lock = take_lock(tmp_path, wait=True)
    assert lock is not None
    os.close(lock)


def test_looking_at_a_lock_makes_no_file(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
