"""Files are whole and valid, whatever is written to them, and locks end with their processes."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kscout.apps.player import load_acquisition
from kscout.config import read_file
from kscout.errors import ConfigError, DataError, RunError
from kscout.evaluation.records.results import COLUMNS, read_scores
from kscout.files import (
    MOST_BYTES,
    check_replaceable,
    is_locked,
    locked,
    parse_toml,
    read_arrays,
    read_json,
    read_record,
    read_text,
    take_lock,
    write_json,
    written_whole,
)


def test_json_has_null_for_what_is_no_number(tmp_path: Path) -> None:
    value = {"a": [math.nan, 1.5, (np.float64("inf"), -math.inf)], "b": {"c": math.nan, "d": "NaN"}}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text()
    found = json.loads(text, parse_constant=lambda word: f"not JSON: {word}")
    assert found == {"a": [None, 1.5, [None, None]], "b": {"c": None, "d": "NaN"}}


def test_only_plain_files_are_read_whole_and_only_small_ones(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", MOST_BYTES + 1)
    for name in ("fifo", "zero", "huge", "", "missing"):
        with pytest.raises(OSError) as told:
            read_text(tmp_path / name)
        assert told.value.strerror
        assert read_record(tmp_path / name) == {}
    (tmp_path / "text").write_text("é")
    assert read_text(tmp_path / "text") == "é"


@pytest.mark.parametrize(
    "content", [b"", b"[" * 100_000, b'{"a":' * 101 + b"1" + b"}" * 101, b"\xff", b"{", b"1" * 9999]
)
def test_bad_json_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    "content",
    ["a" + ".a" * 5000 + " = 1", f"[{'a.' * 10**6}a]", "a = " + "[" * 10**5, 'a = "', "[" * 200],
)
def test_bad_toml_is_a_value_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError):
        parse_toml(content)
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(ConfigError, match=r"a\.toml is not valid TOML"):
        read_file(tmp_path / "a.toml")
    assert parse_toml("a.b.c = ['runs/0.1/x.y.z']") == {"a": {"b": {"c": ["runs/0.1/x.y.z"]}}}


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 damaged", b"\x80\x04N.", b"\x93NUMPY\x01\x00"]
)
def test_bad_arrays_are_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError):
        read_arrays(tmp_path / "a.npz")
    with pytest.raises(DataError, match="is not a recorded acquisition"):
        load_acquisition(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "row", [b"random,0,a", b"\xff", b"random,0,a,0,0,x,1,1,1,1", b'"' * 200_000]
)
def test_bad_rows_of_results_are_told(tmp_path: Path, row: bytes) -> None:
    (tmp_path / "results.csv").write_bytes(",".join(COLUMNS).encode() + b"\n" + row + b"\n")
    with pytest.raises(DataError, match=r"results\.csv"):
        read_scores(tmp_path / "results.csv")


def test_arrays_that_unpack_without_end_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(2**18), b=np.ones(3))
    assert read_arrays(tmp_path / "a.npz")["a"].shape == (2**18,)
    monkeypatch.setattr("kscout.files._UNPACKED", 2**20)
    with pytest.raises(ValueError, match="it unpacks to 2097"):
        read_arrays(tmp_path / "a.npz")


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    target = tmp_path / "[a]*.json"
    with written_whole(target) as mine:
        mine.write_text("in use")
        name, _, token, part = mine.name.rsplit(".", 3)
        dead = subprocess.Popen(["true"])
        dead.wait()
        left = mine.with_name(f"{name}.{dead.pid}.{token}.{part}")
        left.touch()
        other_machine = mine.with_name(left.name.replace(name[-8:], "0" * 8))
        other_machine.touch()
        write_json(target, 1)
        assert mine.exists(), "the file of a process that lives"
        assert other_machine.exists()
        assert not left.exists()
    assert target.read_text() == "in use"


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


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, '{"seconds": "x", "a": 1}'])
def test_a_record_holds_only_what_is_of_its_kind(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    assert "seconds" not in read_record(tmp_path / "r.json", seconds=float)
    (tmp_path / "r.json").write_text('{"seconds": 3, "a": null}')
    assert read_record(tmp_path / "r.json", seconds=float) == {"seconds": 3, "a": None}


def test_a_lock_that_was_removed_is_not_taken_for_the_folders(tmp_path: Path) -> None:
    with locked(tmp_path / "new"), pytest.raises(RunError, match="new is in use by another"):
        with locked(tmp_path / "new"):
            pass
    assert not (tmp_path / "new").exists()
    lock = take_lock(tmp_path)
    assert lock is not None
    (tmp_path / ".lock").unlink()
    with locked(tmp_path):
        assert is_locked(tmp_path)
    os.close(lock)
    assert tmp_path.exists() and not list(tmp_path.iterdir())


def test_what_is_no_file_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    check_replaceable(tmp_path / "a", tmp_path / "missing")
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "device", tmp_path / "fifo"):
        with pytest.raises(OSError):
            check_replaceable(path)
        with pytest.raises(OSError), written_whole(path):
            raise AssertionError("written in vain")
