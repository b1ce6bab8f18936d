"""Compiled C comes from nobody else, is whole, and where it cannot be had torch takes its place."""

import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest
import torch

from kscout.kernels import KernelUnavailableError, native
from kscout.training.convolution import can_compile

SMALL = "ssim_cpu.c"

needs_compiler = pytest.mark.skipif(
    not can_compile(), reason="no C compiler that knows this machine"
)


def forget() -> None:
    """Let the next question be answered as in a new process."""
    native._library.cache_clear()
    native._cache_folder.cache_clear()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Compile into an empty folder; what the process has loaded already is left alone."""
    # Nobody runs it: how fast it is does not matter, and to compile it takes a third of the time.
    monkeypatch.setattr(native, "_FLAGS", [*native._FLAGS, "-O0"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    forget()
    yield tmp_path / "kscout"
    forget()


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.so"))


_COMPILED: dict[str, bytes] = {}


@pytest.fixture
def path(cache: Path) -> Path:
    """Return the compiled library in the cache; it is compiled once for all tests."""
    if not _COMPILED:
        native.native_library(SMALL)
        _COMPILED.update((one.name, one.read_bytes()) for one in kept(cache))
        forget()
        # A file that is loaded may not be written.
        kept(cache)[0].unlink()
    ((name, content),) = _COMPILED.items()
    cache.mkdir(mode=0o700, exist_ok=True)
    (cache / name).write_bytes(content)
    (cache / name).chmod(0o700)
    return cache / name


def litter(cache: Path) -> list[Path]:
    """What compiling left behind beside the kept files."""
    found = [*cache.parent.joinpath("temporary").iterdir(), *cache.parent.glob("kscout*/.*")]
    return [path for path in found if path.exists()]


def write_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put a program in the compiler's place; the real one is at $REAL."""
    folder.mkdir()
    real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "false"
    for name in ("cc", "gcc", "clang"):
        (folder / name).write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def refuse(*_: object) -> None:
    raise AssertionError("compiled once more")


@pytest.mark.slow
@needs_compiler
def test_what_was_compiled_is_found_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.native_library(SMALL).ssim
    (path,) = kept(cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700 == stat.S_IMODE(cache.stat().st_mode)
    forget()
    monkeypatch.setattr(native, "_compile", refuse)
    assert native.native_library(SMALL).ssim
    assert not litter(cache)


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "a bit"])
def test_a_damaged_file_is_compiled_anew_with_a_warning(
    damage: str, path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = path.read_bytes()
    # Another file under the name: the loaded one must not change under this process.
    path.unlink()
    flipped = content[:9000] + bytes([content[9000] ^ 1]) + content[9001:]
    path.write_bytes(content[:5000] if damage == "truncated" else flipped)
    path.chmod(0o700)
    assert native.native_library(SMALL).ssim
    assert [x.name for x in kept(cache)] == [path.name] and path.read_bytes() == content
    assert [x.levelname for x in caplog.records] == ["WARNING"] and "damaged" in caplog.text


@needs_compiler
@pytest.mark.parametrize("fault", ["writable", "owner", "link"])
def test_a_file_that_others_may_have_written_is_not_loaded(
    fault: str,
    path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fault == "writable":
        path.chmod(0o770)
    elif fault == "link":
        path.rename(cache / "elsewhere")
        path.symlink_to(cache / "elsewhere")
    else:
        monkeypatch.setattr(Path, "lstat", as_if_of_another_user(path))
    compiled = []
    compile_to = native._compile
    monkeypatch.setattr(
        native, "_compile", lambda *given: (compiled.append(given), compile_to(*given))
    )
    assert native.native_library(SMALL).ssim
    assert len(compiled) == 1 and "is compiled again" in caplog.text


def as_if_of_another_user(path: Path) -> Callable[[Path], os.stat_result]:
    lstat = Path.lstat

    def foreign(self: Path) -> os.stat_result:
        found = lstat(self)
        values = list(found)
        values[stat.ST_UID] += 1 if self == path else 0
        return os.stat_result(values)

    return foreign


@needs_compiler
@pytest.mark.parametrize("fault", ["writable", "owner", "link", "file", "relative", "read-only"])
def test_an_untrusted_or_unusable_cache_is_not_used_and_nothing_is_left(
    fault: str,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if fault == "file":
        cache.write_text("not a folder")
    elif fault == "link":
        (tmp_path / "other").mkdir()
        cache.symlink_to(tmp_path / "other")
    elif fault == "relative":
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(platformdirs, "user_cache_dir", lambda _: "here")
    else:
        cache.mkdir(mode=0o700)
    if fault == "writable":
        cache.chmod(0o777)
    elif fault == "owner":
        monkeypatch.setattr(Path, "lstat", as_if_of_another_user(cache))
    elif fault == "read-only":
        # Root may write anywhere, so the system's answer is given for it.
        monkeypatch.setattr(tempfile, "mkdtemp", refusing(cache, tempfile.mkdtemp))
    # A planted library under any name must not be looked at.
    if cache.is_dir():
        (cache / "ssim_cpu-planted.so").write_bytes(b"\x7fELF")
    with caplog.at_level(logging.INFO):
        assert native.native_library(SMALL).ssim
    assert not litter(cache) and not (tmp_path / "here").exists()
    assert "not used" in caplog.text or "not stored" in caplog.text
    assert not [x for x in tmp_path.rglob("*.so") if x.name != "ssim_cpu-planted.so"]


def refusing(folder: Path, mkdtemp: Callable[..., str]) -> Callable[..., str]:
    def answer(*given: str | None, **named: str | None) -> str:
        if str(folder) in map(str, [*given, *named.values()]):
            raise PermissionError(13, "Permission denied", str(folder))
        return mkdtemp(*given, **named)

    return answer


@needs_compiler
@pytest.mark.slow
def test_two_processes_at_once_end_with_one_whole_file(cache: Path) -> None:
    started = [get_context("fork").Process(target=load_library) for _ in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0, 0]
    assert len(kept(cache)) == 1 and not litter(cache)


def load_library() -> None:
    assert native.native_library(SMALL).ssim


BAD_COMPILERS = {
    "fails": "echo broken; exit 3",
    "garbage": 'while [ "$1" ]; do [ "$1" = -o ] && echo garbage > "$2"; shift; done',
    "nothing": "exit 0",
    "not UTF-8": "printf '\\377\\376'; exit 1",
    "lacks functions": 'while [ "$1" ]; do [ "$1" = -o ] && to="$2"; shift; done; '
    '[ "$to" ] && echo "int unused;" | $REAL -shared -fPIC -x c - -o "$to"; exit 0',
    "half a file": '"$REAL" "$@" || exit 1; while [ "$1" ]; do '
    '[ "$1" = -o ] && head -c 5000 "$2" > "$2.half" && mv "$2.half" "$2"; shift; done; exit 0',
}


@needs_compiler
@pytest.mark.parametrize("kind", BAD_COMPILERS)
def test_a_bad_compiler_is_told_in_one_sentence(
    kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_compiler(monkeypatch, tmp_path / "bin", BAD_COMPILERS[kind])
    with pytest.raises(KernelUnavailableError, match=f"{SMALL} was not compiled"):
        native.native_library(SMALL)
    assert not kept(cache) and not litter(cache)


@needs_compiler
def test_a_compiler_that_prints_any_bytes_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_compiler(monkeypatch, tmp_path / "bin", 'printf "\\377\\376"; exec "$REAL" "$@"')
    assert native.native_library(SMALL).ssim


@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", ["_ANSWER_LIMIT_S", "_COMPILE_LIMIT_S"])
def test_a_compiler_that_hangs_is_ended_with_its_children(
    limit: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = 'case "$*" in *--version*) exit 0;; esac; ' if limit == "_COMPILE_LIMIT_S" else ""
    write_compiler(monkeypatch, tmp_path / "bin", f"{answers}sleep 9000 & echo $! >> $0.pid; wait")
    monkeypatch.setattr(native, limit, 0.5)
    with pytest.raises(KernelUnavailableError, match="did not end"):
        native.native_library(SMALL)
    written = [x.read_text() for x in (tmp_path / "bin").glob("*.pid")]
    for pid in " ".join(written).split():
        # A signal is carried out when the process next runs: on a busy machine, some time later.
        while is_running(pid):
            time.sleep(0.01)


def is_running(pid: str) -> bool:
    """Say whether a process exists that has not ended; an ended one may not be reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_a_compiler_nothing_is_tried_twice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_key", refuse)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for _ in range(2):
        with pytest.raises(KernelUnavailableError, match="no C compiler"):
            native.native_library(SMALL)
    assert not cache.exists() and native._library.cache_info().hits == 1


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("own", [True, False])
def test_every_part_is_done_once_and_failures_are_raised(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own:
        monkeypatch.setattr(native, "_torch_openmp", lambda: None)
    torch.set_num_threads(3)
    done: list[int] = []
    native.over_parts(7, lambda begin, end: done.extend(range(begin, end)))
    assert sorted(done) == list(range(7))
    native.over_parts(0, lambda *_: done.append(-1))
    assert -1 not in done
    with pytest.raises(ZeroDivisionError):
        native.over_parts(5, lambda begin, _: done.append(1 // begin))
    # A signal is no failure of a part, and no part is done twice or left out for it.
    with pytest.raises(SystemExit, match="143"):
        native.over_parts(5, lambda begin, _: sys.exit(143) if begin else None)


@pytest.mark.usefixtures("threads")
def test_parts_that_a_lost_signal_left_out_are_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_work(*_: object) -> None:
        """Return as a callback does in which a signal came before its first line."""

    openmp = SimpleNamespace(GOMP_parallel=without_work)
    monkeypatch.setattr(native, "_torch_openmp", lambda: openmp)
    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt):
        native.over_parts(4, lambda *_: None)


def test_torch_without_an_openmp_of_its_own_has_other_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libgomp.so.1").write_bytes(b"not loaded by anyone")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    native._torch_openmp.cache_clear()
    try:
        assert native._torch_openmp() is None
    finally:
        native._torch_openmp.cache_clear()
