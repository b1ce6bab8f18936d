"""What the command line says when something outside of it goes wrong, in one sentence each."""

import errno
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

import command_line
from fuzz import forks
from kscout import files
from kscout.apps.cli import TERMINATED, cpu_quota, limit_threads, sentence_of
from kscout.apps.cli.console import PlainLines, console
from kscout.apps.cli.progress import Lines
from kscout.apps.report.build import build_report, write_report
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.files import locked, take_lock, written_whole
from kscout.training import loop

LABELS = ("[/x]", "[bold]", ":smile:", "| a *b* [c](d)")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of 13 columns, an evaluation on it and a run folder."""
    folder = tmp_path_factory.mktemp("faults")
    generator = torch.Generator().manual_seed(0)
    with StoreWriter(folder / "store", {"made by": "tests"}) as writer:
        for split in ("train", "val", "test"):
            images = torch.rand(2, 11, 13, generator=generator).numpy()
            writer.append(split, split, images)
        writer.finish()
    assert run(*evaluating(folder, "evaluation"), "--policy", "random") == 0
    assert run(*training(folder, "run")) == 0
    return folder


@pytest.fixture
def work(material: Path, tmp_path: Path) -> Path:
    return shutil.copytree(material, tmp_path / "work")


def run(*arguments: object) -> int:
    """Run the command line as `python -m kscout` does; return its exit code."""
    return forks.command([str(word) for word in arguments])


def evaluating(work: Path, out: str) -> list[object]:
    data = ("--data", work / "store", "--reconstructor", "zero-filled", "--out", work / out)
    return ["evaluate", *data, "--n-initial", 3, "--steps", 2, "--trajectories", 2]


def training(work: Path, out: str) -> list[object]:
    data = ("--data", work / "store", "--out", work / out, "--epochs", 2, "--channels", 2)
    return ["train", "reconstructor", *data, "--set", "reconstructor.n_pools=1"]


def analyzing(work: Path, out: str) -> list[object]:
    return ["analyze", "masks", work / "evaluation", "--out", work / out]


def reporting(work: Path, out: str) -> list[object]:
    return ["report", work / "evaluation", "--out", work / out / "page.html"]


WRITERS = {"evaluate": evaluating, "train": training, "analyze": analyzing}


@pytest.mark.parametrize("command", WRITERS.values(), ids=WRITERS)
def test_a_second_process_is_refused_and_changes_nothing(
    work: Path, capsys: pytest.CaptureFixture[str], command: Callable[..., list[object]]
) -> None:
    more = ["--policy", "random"] if command is evaluating else []
    lock = take_lock(work / "out")
    assert lock is not None
    assert run(*command(work, "out"), *more) == 1
    assert f"{work / 'out'} is in use by another process" in capsys.readouterr().err
    assert [path.name for path in (work / "out").iterdir()] == [".lock"]
    os.close(lock)
    assert run(*command(work, "out"), *more) == 0


def test_a_second_report_waits_for_its_turn(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, asked = work / "out" / "page.html", threading.Event()
    wait = files.lock_descriptor

    def waiting(descriptor: int, *, blocking: bool) -> bool:
        asked.set()
        return wait(descriptor, blocking=blocking)

    with locked(page.parent, name=".page.html.lock"):
        monkeypatch.setattr(files, "lock_descriptor", waiting)
        report = build_report([work / "evaluation"])
        writer = threading.Thread(target=write_report, args=(report, page))
        writer.start()
        assert asked.wait(60)
        assert not page.exists()
    writer.join()
    assert page.exists()
    assert not list(page.parent.glob(".*"))


def test_a_refused_evaluation_leaves_no_folder(work: Path) -> None:
    assert run(*evaluating(work, "new"), "--policy", "random", "--n-initial", 99) == 1
    assert not (work / "new").exists()


def test_work_that_no_memory_holds_is_refused_and_leaves_no_folder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = 10_000_000_000
    policy = ("--reconstructor", "zero-filled", "--n-initial", 3, "--steps", 2)
    train = ("train", "policy", "--data", work / "store", "--out", work / "new", *policy)
    for command in (
        [*evaluating(work, "new"), "--policy", "random", "--trajectories", huge],
        [*train, "--trajectories", huge],
        [*train, "--method", "ngreedy", "--trajectories", 10**8],
        *(
            [*train, "--method", "dense", "--policy", "column", "--set", f"training.{name}={huge}"]
            for name in ("n_random", "n_repeated", "n_repeats")
        ),
        [*training(work, "new"), "--channels", 2**20],
        [*training(work, "new"), "--set", "reconstructor.n_pools=4"],
    ):
        assert run(*command) == 1
        told = capsys.readouterr().err
        assert " GiB of memory or more, and " in told or "are too small for 4 poolings" in told
        assert not (work / "new").exists(), command


def test_nothing_printed_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m\rb\tc\nd"
    table = Table()
    table.add_row(name)
    console().print(Group(Text(name), name))
    console(stderr=True).print(table)
    PlainLines().handle(logging.makeLogRecord({"msg": f"of a file: {name}"}))
    printed = capsys.readouterr()
    assert r"of a file: a\x1b[31m" in printed.err
    for told in printed:
        assert r"a\x1b[31m\rb\tc" in told and not set("\x1b\r\t") & set(told)
        assert len(told.splitlines()) > 1


def test_labels_are_printed_as_they_are(
    work: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    wanted = [word for label in LABELS for word in ("--policy", f"{label}=random")]
    assert run(*evaluating(work, "labels"), *wanted) == 0
    assert run("analyze", "masks", work / "labels", "--out", work / "masks") == 0
    told = capsys.readouterr()
    for label in LABELS[:3]:
        assert told.out.count(f" {label} ") >= 2, label
        assert f"{label}, seed 0" in told.err


@pytest.mark.parametrize("command", [*WRITERS.values(), reporting], ids=[*WRITERS, "report"])
def test_a_full_disk_is_told_with_the_file_and_what_to_do(
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: Callable[..., list[object]],
) -> None:
    more = ["--policy", "random"] if command is evaluating else []

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert run(*command(work, "out"), *more) == 1
    told = capsys.readouterr().err
    assert str(work / "out") in told
    assert "No space left on device; free some space there and repeat the same command" in told
    assert not list(work.rglob("*.part"))
    assert run(*command(work, "out"), *more) == 0


def test_a_failed_write_names_the_file_and_not_the_one_aside(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full") as caught, written_whole(tmp_path / "a.json"):
        raise OSError(errno.ENOSPC, "full")
    assert caught.value.filename == str(tmp_path / "a.json")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried 3 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
    ],
)
def test_memory_that_runs_out_is_one_sentence(error: Exception) -> None:
    told = sentence_of(error)
    assert told is not None
    assert told.startswith("memory ran out (")
    assert "--batch-size" in told


def test_a_mistake_of_kscout_is_not_hidden() -> None:
    assert sentence_of(RuntimeError("shapes differ")) is None
    assert sentence_of(ValueError("no")) is None


def test_a_training_that_is_terminated_says_so_and_goes_on(
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep = loop.TrainingRun.keep

    def stopped(training_run: loop.TrainingRun, *arguments: object) -> None:  # type: ignore[type-arg]
        keep(training_run, *arguments)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(loop.TrainingRun, "keep", stopped)
        assert run(*training(work, "out")) == TERMINATED == 143
    assert "terminated; repeat the same command to resume" in capsys.readouterr().err
    assert f"{work / 'out'}: saved after epoch 1 of " in caplog.text
    assert not (work / "out" / "done.json").exists()
    assert run(*training(work, "out")) == 0
    weights = [(work / name / "weights.safetensors").read_bytes() for name in ("out", "run")]
    assert weights[0] == weights[1]


def test_threads_follow_from_the_container_unless_a_user_chose_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for given, quota, expected in (
        ({}, 2.5, {"OMP_NUM_THREADS": "2"}),
        ({}, 0.5, {"OMP_NUM_THREADS": "1"}),
        ({}, 99.0, {}),
        ({}, None, {}),
        ({"OMP_NUM_THREADS": "3"}, 1.0, {"OMP_NUM_THREADS": "3"}),
    ):
        limit_threads(given, quota)
        assert given == expected


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("250000 100000", 2.5), ("x", None), ("1 0", None)]
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, text: str, quota: float | None) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path) == quota


def test_lines_tell_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 60.0, 66.0, 84.0, 88.0, 90.0, 96.0, 102.0])
    lines = Lines(console(), every_s=10.0, clock=lambda: next(seconds))
    for what, done in [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("[b]", 1), ("[b]", 2)]:
        lines.show(what, done, 4)
    lines.show("[b]", 3, 4, "epoch 3/4")
    told = capsys.readouterr().out.splitlines()
    # The first part of a task is not timed.
    assert told == ["a: 1 of 4", "a: 3 of 4, 0.2 min left", "a: done", "epoch 3/4, 0.1 min left"]


@pytest.mark.parametrize("words", [["evaluate"], ["train", "policy"]])
def test_use_after_the_command_is_told_its_place(words: list[str]) -> None:
    said = rf"comes before the command: kscout --use MODULE {' '.join(words)} \.\.\."
    with pytest.raises(ConfigError, match=said):
        command_line.kscout(*words, "--use", "own")


def test_an_out_that_cannot_be_is_told_with_what_to_name_instead(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "bad.toml").touch()
    (work / "empty").mkdir()
    (work / "volumes").mkdir()
    np.save(work / "volumes" / "a.npy", np.ones((2, 11, 13), np.float32))
    random = ("--policy", "random")
    for command, words in (
        ([*evaluating(work, "bad.toml"), *random], "bad.toml: File exists; choose another name"),
        ([*training(work, "bad.toml/run")], "Not a directory; choose another name (--out)"),
        (["report", work / "evaluation", "-o", work / "empty"], "directory; name a file instead"),
        ([*evaluating(work, "/sys/foo"), *random], "; choose "),
        (["data", "import", work / "volumes", "--out", "/proc/foo"], "/proc/foo: No such file"),
        (["data", "make", "knee", "--out", "/proc/foo"], "/proc is a system folder"),
    ):
        assert run(*command) == 1
        assert words in capsys.readouterr().err, command
