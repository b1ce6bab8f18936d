"""Bad inputs end in a sentence, killed trainings in the same bytes, and the judge sees the rest."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuzz.cases import ARTIFACTS, KINDS, Case
from fuzz.commands import ENTROPY, EVALUATE, FINISHED, IMPORT, MAKE, RESUME, TRAIN, UNET
from fuzz.forks import TRACEBACK, Ended, command, in_child, load_modules, stand_in
from fuzz.hostile import IMAGES, ORDER
from fuzz.judge import LIMIT_S, fault_of, snapshot
from fuzz.long_commands import CAMPAIGN, JOINT
from fuzz.service import ATTACKS, SERVE, attacked
from fuzz.volumes import stack
from kscout.apps.campaign import task
from kscout.apps.cli import main

SOME = Case("options", "", ["data", "info", "store"])


WHOLE = [
    *(IMPORT, MAKE, UNET, TRAIN, RESUME, FINISHED, ENTROPY, JOINT, CAMPAIGN),
    [*EVALUATE, "--policy", "random", "--policy", "greedy"],
    [*IMAGES, "--out", "images"],
    ["export", "order", "center-out", *ORDER, "--out", "order.csv"],
    ["analyze", "ranking", "results", "--out", "analyses"],
]
FUZZ = Path(__file__).parent / "fuzz" / "run.py"


@pytest.mark.slow
def test_a_bad_input_of_each_kind_ends_in_a_sentence() -> None:
    # In a process of its own: users' mistakes must be told without the checks of types.
    command = [sys.executable, str(FUZZ), "--n", str(len(KINDS)), "--seed", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bad = json.loads(done.stdout.splitlines()[-1])
    assert not bad, "\n".join(f"case {one['number']}: {one['what']}: {one['fault']}" for one in bad)


@pytest.mark.slow
def test_killed_trainings_end_with_the_bytes_of_undisturbed_ones() -> None:
    names = ("train reconstructor", "train policy", "train joint")
    kill = [sys.executable, str(FUZZ.with_name("kill.py")), "--n", "6", "--seed", "0"]
    only = [word for name in names for word in ("--only", name)]
    done = subprocess.run([*kill, *only], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", WHOLE, ids=lambda words: " ".join(words[:2]))
def test_commands_succeed_before_a_case_damages_anything(tmp_path: Path, words: list[str]) -> None:
    # Here, so that no child does.
    load_modules()
    here = shutil.copytree(ARTIFACTS, tmp_path / "here")
    (here / "volumes").mkdir()
    for number in (1, 2, 3):
        np.save(here / "volumes" / f"{number}.npy", stack(number))

    def work() -> int:
        task._run_command = stand_in
        return command(words)

    done = in_child(work, here, tmp_path / "log")
    assert done.code == 0, done.output


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_service_withstands_an_attack(tmp_path: Path, name: str) -> None:
    words, variables, _ = ATTACKS[name]

    def work() -> int:
        os.environ.update(variables)
        attacked(name, seed=0)
        return command([*SERVE, *words])

    done = in_child(work, tmp_path, tmp_path / "log", limit_s=LIMIT_S)
    assert done.code == 128 + signal.SIGINT and "Traceback" not in done.output, done.output


def ended(code: int = 1, output: str = "error: the store is gone; copy it\n") -> Ended:
    return Ended(code, False, output, 1.0, 0.1)


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        (ended(), ""),
        (ended(0, ""), ""),
        (ended(2, "Usage: kscout\nError: no such option"), ""),
        (ended(TRACEBACK, "Traceback (most recent call last):\nKeyError: 1"), "traceback KeyError"),
        (ended(-signal.SIGSEGV), "signal 11"),
        (ended(1, "error: [Errno 28] No space left on device"), "no sentence"),
        (ended(1, "error: gone"), "no sentence"),
        (ended(1, "something went wrong"), "without a sentence"),
        (ended(0, "a table with \x1b[31m in it"), "control characters"),
        (Ended(-9, True, "", 1.0, 0.1), "hangs"),
    ],
)
def test_only_success_usage_and_sentences_pass(how: Ended, fault: str) -> None:
    found = fault_of(SOME, how, {}, {})
    assert fault in found
    assert bool(found) == bool(fault)


def test_success_with_a_bad_input_is_seen() -> None:
    bad = Case("untrue", "", ["data", "info", "store"], must_fail=True)
    assert fault_of(bad, ended(0, ""), {}, {}) == "succeeds with a bad input"
    assert not fault_of(bad, ended(), {}, {})


def test_what_a_failed_command_wrote_or_changed_is_seen(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("before")
    before = snapshot(tmp_path)
    (tmp_path / "kept").write_text("after")
    assert "changes kept" in fault_of(SOME, ended(), before, snapshot(tmp_path))
    (tmp_path / "kept").write_text("before")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").touch()
    assert not fault_of(SOME, ended(), before, snapshot(tmp_path))
    (tmp_path / "out" / "half").touch()
    assert "leaves out/half" in fault_of(SOME, ended(), before, snapshot(tmp_path))
    (tmp_path / "out" / ".half.7.part").touch()
    assert "leaves out/.half.7.part" in fault_of(SOME, ended(0), before, snapshot(tmp_path))


def test_a_child_is_bounded_in_memory_and_in_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    greedy = in_child(lambda: len(bytearray(2**29)) * 0, tmp_path, log, n_bytes=2**28)
    assert greedy.code == TRACEBACK
    assert "MemoryError" in greedy.output
    assert in_child(lambda: len(bytearray(2**27)) * 0, tmp_path, log, n_bytes=2**28).code == 0
    os.mkfifo(tmp_path / "fifo")
    hung = in_child(lambda: len((tmp_path / "fifo").read_text()), tmp_path, log, limit_s=0.2)
    assert hung.is_hung
    assert hung.code == -signal.SIGKILL


def test_what_a_file_holds_does_not_command_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, out = str(tmp_path / "\x1b[31m\nerror: all is lost"), str(tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["kscout", "analyze", "ranking", name, "--out", out])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert "\x1b" not in told and len(told.splitlines()) == 1
