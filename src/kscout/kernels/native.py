"""C kernels for a CPU, compiled on first use by the machine's compiler.

Compiled files are stored in the user's cache, one for each source, compiler and kind of CPU. Their
name ends in the checksum of their content: a damaged file is compiled again. A cache that other
users can write to is not used; each process then compiles for itself and deletes the result.
Without a working compiler there are no kernels, and plain torch is used instead.

Functions are called with tensors and integers (`call`), by several threads (`over_parts`).
"""

import contextlib
import ctypes
import hashlib
import itertools
import logging
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import torch
from jaxtyping import Float
from torch import Tensor

from kscout.kernels import KernelUnavailableError, read_source

_scratch: dict[int, Tensor] = {}
"""Scratch memory by thread. Python sees new OpenMP threads at each call, without local data."""

_log = logging.getLogger(__name__)

_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-w", "-fno-schedule-insns")
"""On ARM, GCC schedules loads so early that sums no longer fit the registers."""
_IS_ARM = platform.machine() in ("aarch64", "arm64")
_FOR_THIS_MACHINE = ("-march=native", "-mcpu=native")[:: -1 if _IS_ARM else 1]
"""Compilers support one of the two; without either, code is slower than torch's. On ARM the second
one also determines the order of instructions."""
_COMPILE_LIMIT_S, _ANSWER_LIMIT_S = 120.0, 60.0


def native_library(file: str) -> ctypes.CDLL:
    """Return the functions of a C file of this folder."""
    loaded = _library(file)
    if isinstance(loaded, str):
        raise KernelUnavailableError(loaded)
    return loaded


@cache
def _library(file: str) -> ctypes.CDLL | str:
    try:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            return "no C compiler (cc, gcc or clang) was found"
        key = _key(compiler, file)
        folder = _cache_folder()
        cached = None if folder is None else _cached(folder, key)
        return ctypes.CDLL(str(cached)) if cached else _compiled(compiler, file, key, folder)
    except (OSError, KernelUnavailableError) as error:
        return f"{file} was not compiled: {error}"


def _key(compiler: str, file: str) -> str:
    """Return the prefix of a compiled file's name, which depends on all inputs of compilation."""
    version = _run([compiler, "--version"], _ANSWER_LIMIT_S)
    kind = [read_source(file), compiler, version, _processor(), *_FLAGS, *_FOR_THIS_MACHINE]
    return f"{Path(file).stem}-{hashlib.sha256(chr(10).join(kind).encode()).hexdigest()[:20]}"


def _processor() -> str:
    """Return an identifier of the kind of CPU, since machines may share a cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = [platform.processor()]
    known = {line for line in lines if line.lower().startswith(("flags", "features", "cpu part"))}
    return "\n".join([platform.machine(), *sorted(known or lines[:1])])


@cache
def _cache_folder() -> Path | None:
    """Return the user's cache folder, created if missing; None if it is not safe."""
    folder = Path(platformdirs.user_cache_dir("kscout"))
    if not folder.is_absolute():
        _log.warning("the cache folder %s is not an absolute path and is not used", folder)
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _fault(folder, stat.S_IFDIR)
    except OSError as error:
        _log.info("the cache folder %s is not used: %s", folder, error.strerror)
        return None
    if fault is not None:
        _log.warning("the cache folder %s is not used: it %s", folder, fault)
        return None
    return folder


def _fault(path: Path, kind: int) -> str | None:
    """Return the reason why other users could change a file or folder; None if they cannot."""
    status = path.lstat()
    if stat.S_IFMT(status.st_mode) != kind:
        return "is a link or has another type"
    if status.st_uid != os.getuid():
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others"
    return None


def _cached(folder: Path, key: str) -> Path | None:
    for path in sorted(folder.glob(f"{key}-*.so")):
        # Another process may remove it at the same time, and a folder may be read-only.
        with contextlib.suppress(OSError):
            fault = _fault(path, stat.S_IFREG)
            if fault is None and path.name == _name(key, path):
                return path
            _log.warning("%s is compiled again: it %s", path, fault or "is damaged")
            path.unlink()
    return None


def _name(key: str, path: Path) -> str:
    return f"{key}-{hashlib.sha256(path.read_bytes()).hexdigest()}.so"


def _compiled(compiler: str, file: str, key: str, folder: Path | None) -> ctypes.CDLL:
    """Compile and load a file, and store it if the folder is writable."""
    try:
        place = tempfile.TemporaryDirectory(dir=folder, prefix=".compiling-")
    except OSError as error:
        if folder is None:
            raise
        _log.info("%s is not stored in %s: %s", file, folder, error.strerror)
        return _compiled(compiler, file, key, None)
    with place:
        made = Path(place.name) / f"{key}.so"
        _compile(compiler, file, made)
        # A loaded file may be moved or removed: its pages stay until the process ends.
        library = ctypes.CDLL(str(made))
        if folder is not None:
            try:
                # Another process may do the same, so files appear complete, by one rename.
                _flush(made)
                made.replace(folder / _name(key, made))
                _flush(folder)
            except OSError as error:
                _log.info("%s is not stored in %s: %s", file, folder, error.strerror)
    return library


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _compile(compiler: str, file: str, to: Path) -> None:
    """Compile for this machine, and test in another process that the result can be loaded."""
    source, failures = Path(__file__).with_name(file), []
    functions = re.findall(r"^(?:void|long) (\w+)\(", read_source(file), flags=re.MULTILINE)
    for target in _FOR_THIS_MACHINE:
        try:
            command = [compiler, *_FLAGS, target, "-o", str(to), str(source), "-lm"]
            _run(command, _COMPILE_LIMIT_S)
            to.chmod(0o700)
            # Loading a truncated library raises no exception: it kills the process.
            probe = [sys.executable, "-I", "-S", "-c", _PROBE, str(to), *functions]
            _run(probe, _ANSWER_LIMIT_S)
            return
        except (OSError, KernelUnavailableError) as error:
            failures.append(str(error))
    raise KernelUnavailableError("; ".join(failures))


_PROBE = "import ctypes, sys; [getattr(ctypes.CDLL(sys.argv[1]), x) for x in sys.argv[2:]]"


def _run(command: list[str], limit_s: float) -> str:
    """Run a program without input; return its output, in any encoding."""
    name = Path(command[0]).name
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise KernelUnavailableError(f"{name} did not end within {limit_s:.0f} s") from error
        finally:
            if process.poll() is None:
                # With its children, because a compiler consists of several programs.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    if code != 0:
        raise KernelUnavailableError(f"{name} ended with {code}: {text[:500]}")
    return text


def call(function: Callable[..., object], *arguments: Tensor | int) -> None:
    """Call a C function with contiguous tensors and integers."""
    function(
        *(
            ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_long(x)
            for x in arguments
        )
    )


def count(function: Any, *arguments: int) -> int:  # noqa: ANN401 - a C function
    """Call a C function that returns an integer."""
    function.restype = ctypes.c_long
    return int(function(*(ctypes.c_long(x) for x in arguments)))


def scratch(n_floats: int) -> Float[Tensor, " n"]:
    """Return uninitialized memory of this thread, overwritten by the next call.

    The system would zero new memory page by page, which costs as much as a layer.
    """
    thread = threading.get_ident()
    held = _scratch.get(thread)
    if held is None or len(held) < n_floats:
        held = _scratch[thread] = torch.empty(n_floats)
    return held


def over_parts(n: int, function: Callable[[int, int], None]) -> None:
    """Call a function on the consecutive parts [begin, end) of n items, one for each thread.

    The number of threads is that of torch, with torch's own threads if available; C functions
    release the interpreter's lock.
    """
    n_parts = min(n, torch.get_num_threads())
    edges = [n * part // n_parts for part in range(n_parts + 1)] if n else [0]
    parts = list(itertools.pairwise(edges))
    if len(parts) < 2:
        for part in parts:
            function(*part)
        return
    openmp = _torch_openmp()
    if openmp is None:
        list(_pool(os.getpid()).map(lambda part: function(*part), parts))
    else:
        _on_openmp(openmp, parts, function)


def _on_openmp(
    openmp: ctypes.CDLL, parts: list[tuple[int, int]], function: Callable[[int, int], None]
) -> None:
    """Call the function from OpenMP's threads; their exceptions (and signals) are raised here.

    An exception that leaves `work` would only be printed, and its part would be missing.
    """
    left, done = iter(parts), []
    failures: list[BaseException] = []

    def work(_: int | None) -> None:
        try:
            # Safe under the interpreter's lock. A team may be smaller than requested.
            for part in left:
                function(*part)
                done.append(part)
        except BaseException as error:
            failures.append(error)

    openmp.GOMP_parallel(_WORK(work), None, ctypes.c_uint(len(parts)), ctypes.c_uint(0))
    if failures:
        raise failures[0]
    if len(done) < len(parts):
        # A signal before the first line of `work` would be lost, together with its part.
        raise KeyboardInterrupt


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _torch_openmp() -> ctypes.CDLL | None:
    """Return GNU's OpenMP if torch has loaded it; otherwise None.

    Its threads spin for a while after their work, and other threads would wait for a core.
    """
    package = Path(torch.__file__).parent
    files = [*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")]
    for file in sorted(files):
        try:
            # Only the loaded copy; another one would have its own threads.
            openmp = ctypes.CDLL(str(file), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            if openmp.GOMP_parallel:
                return openmp
        except (OSError, AttributeError):
            continue
    return None


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    """Return this process's threads, because those of a parent do not survive a fork."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="kscout")
