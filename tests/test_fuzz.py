"""Bad inputs end in a sentence, killed trainings in the same bytes, and the judge sees the rest."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import commands, service
from fuzz.cases import ARTIFACTS, KINDS, Case, copy_artifacts
from fuzz.forks import TRACEBACK, Ended, command, in_child, load_modules, stand_in
from fuzz.judge import LIMIT_S, fault_of, snapshot
from kscout.apps.campaign import task

SOME = Case("options", "", commands.INFO)
WHOLE = [
    *(commands.IMPORT, commands.MAKE, commands.UNET, commands.TRAIN, commands.RESUME),
    *(commands.FINISHED, commands.ENTROPY, commands.JOINT, commands.CAMPAIGN, commands.EXPORT),
    *(commands.ORDER, commands.MASKS, [*commands.GREEDY, "--policy", "random"]),
]
FUZZ = Path(__file__).parent / "fuzz"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["run.py", "--n", str(len(KINDS))],
        ["kill.py", "--n", "6"]
        + [f"--only={name}" for name in ("train reconstructor", "train policy", "train joint")],
    ],
    ids=["bad inputs", "killed trainings"],
)
def test_cases_of_a_seed_have_no_fault(words: list[str]) -> None:
    # In a process of its own: users' mistakes must be told without the checks of types.
    words = [sys.executable, str(FUZZ / words[0]), *words[1:], "--seed", "0"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", WHOLE, ids=lambda words: " ".join(words[:2]))
def test_commands_succeed_before_a_case_damages_anything(tmp_path: Path, words: list[str]) -> None:
    # Here, so that no child does.
    load_modules()
    copy_artifacts(tmp_path / "here")

    def work() -> int:
        task._run_command = stand_in
        return command(words)

    done = in_child(work, tmp_path / "here", tmp_path / "log")
    assert done.code == 0, done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "attack"),
    [([], service.forged), (["--behind-proxy"], service.forged), ([], service.declared)],
)
def test_a_service_withstands_an_attack(
    tmp_path: Path, words: list[str], attack: Callable[[service.Places], None]
) -> None:
    def work() -> int:
        os.environ["FORWARDED_ALLOW_IPS"] = "*"
        service.attacked(attack)
        return command([*commands.SERVE, *words])

    done = in_child(work, tmp_path, tmp_path / "log", limit_s=LIMIT_S, n_bytes=2**30)
    assert done.code == 128 + signal.SIGINT and "Traceback" not in done.output, done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [[*commands.MAKE, "--volumes", "2,0,0", "--workers", "2"], [*commands.TRAIN, "--seeds", "2"]],
    ids=lambda words: " ".join(words[:2]),
)
def test_processes_import_no_module_from_the_working_folder(
    tmp_path: Path, words: list[str]
) -> None:
    here = shutil.copytree(ARTIFACTS, tmp_path / "here")
    for name in ("json", "torch", "kscout", "sitecustomize", "typer", "numpy", "multiprocessing"):
        (here / f"{name}.py").write_text("open(__file__ + '.imported', 'w').close()\n")
    # As the installed script, which does not begin its path of modules with the working folder.
    code = (
        "import sys; sys.path[:] = filter(None, sys.path)\n"
        "from kscout.training import policy; policy._n_at_once = lambda *_: 2  # as on a GPU\n"
        "from kscout.apps.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=here, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not list(here.glob("*.imported"))


def ended(code: int = 1, output: str = "error: the store is gone; copy it\n") -> Ended:
    return Ended(code, False, output, 1.0)


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
        (Ended(-9, True, "", 1.0), "hangs"),
    ],
)
def test_only_success_usage_and_sentences_pass(how: Ended, fault: str) -> None:
    found = fault_of(SOME, how, {}, {})
    assert fault in found
    assert bool(found) == bool(fault)


def test_success_with_a_bad_input_is_seen() -> None:
    bad = Case("untrue", "", commands.INFO, must_fail=True)
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, out = str(tmp_path / "\x1b[31m\nerror: all is lost"), str(tmp_path / "out")
    assert command(["analyze", "masks", name, "--out", out]) != 0
    told = capsys.readouterr().err
    assert "\x1b" not in told and len(told.splitlines()) == 1
