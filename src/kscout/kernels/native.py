"""C kernels for a CPU, compiled when first used by the machine's own compiler.

Where there is no compiler, or it does not know this machine, there are no kernels, and callers do
what they did without. Compiled files are kept in the user's cache, one for each source, compiler
and kind of CPU.
"""

import ctypes
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.kernels import read_source

log = logging.getLogger(__name__)

_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-w", "-fno-schedule-insns")
"""On ARM, GCC moves loads ahead until sums no longer fit the registers; elsewhere it does not."""
_IS_ARM = platform.machine() in ("aarch64", "arm64")
_FOR_THIS_MACHINE = ("-march=native", "-mcpu=native")[:: -1 if _IS_ARM else 1]
"""Compilers differ in which of the two they take; without either, code is slower than torch's. On
ARM the second one also chooses the order of instructions."""
_LIMIT_S = 120

_is_enabled = True
_scratch: dict[int, Tensor] = {}
"""By thread. To Python a thread of OpenMP is a new one at each call, so it has no local memory."""


@contextmanager
def compiled_kernels(*, enabled: bool) -> Iterator[None]:
    """Allow compiled kernels inside the block, or do without them."""
    global _is_enabled
    before, _is_enabled = _is_enabled, enabled
    try:
        yield
    finally:
        _is_enabled = before


def native_library(file: str) -> ctypes.CDLL | None:
    """Return the functions of a C file of this folder; None where switched off or impossible."""
    return _library(file) if _is_enabled else None


@cache
def _library(file: str) -> ctypes.CDLL | None:
    source = Path(__file__).with_name(file)
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        log.info("no C compiler was found: torch's own operations run in place of %s", file)
        return None
    try:
        return _compiled(compiler, source)
    except (OSError, subprocess.SubprocessError) as error:
        log.info("%s was not compiled, torch's own operations run in its place: %s", file, error)
        return None


def _compiled(compiler: str, source: Path) -> ctypes.CDLL:
    """Load the file from the cache, compiling it first where it is not there."""
    kind = [compiler, _output([compiler, "--version"]), _processor(), *_FLAGS, *_FOR_THIS_MACHINE]
    digest = hashlib.sha256("\n".join([read_source(source.name), *kind]).encode())
    folder = _cache_folder()
    library = folder / f"{source.stem}-{digest.hexdigest()[:20]}.so"
    if library.exists():
        return ctypes.CDLL(str(library))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place) / library.name
        _compile(compiler, source, made)
        # Another process may do the same: whole files only, by one rename.
        made.replace(library)
    return ctypes.CDLL(str(library))


def _compile(compiler: str, source: Path, to: Path) -> None:
    failures = []
    for target in _FOR_THIS_MACHINE:
        command = [compiler, *_FLAGS, target, "-o", str(to), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode == 0:
            return
        failures.append(done.stderr.strip()[:500])
    raise OSError("; ".join(failures))


def _output(command: list[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_S, check=True
    ).stdout


def _processor() -> str:
    """Return what tells kinds of CPU apart: a cache may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    known = {line for line in lines if line.lower().startswith(("flags", "features", "cpu part"))}
    return "\n".join([platform.machine(), *sorted(known or lines[:1])])


def _cache_folder() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "kscout"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="kscout-"))
    return folder if os.access(folder, os.W_OK) else Path(tempfile.mkdtemp(prefix="kscout-"))


def call(function: Callable[..., object], *arguments: Tensor | int) -> None:
    """Call a C function with contiguous tensors and whole numbers."""
    function(
        *(
            ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_long(x)
            for x in arguments
        )
    )


def count(function: Any, *arguments: int) -> int:  # noqa: ANN401 - a C function
    """Call a C function that returns a whole number."""
    function.restype = ctypes.c_long
    return int(function(*(ctypes.c_long(x) for x in arguments)))


def scratch(n_floats: int) -> Float[Tensor, " n"]:
    """Return memory of this thread, undefined and overwritten by the next call that asks.

    Memory taken anew is zeroed by the system page by page, which costs as much as a layer.
    """
    thread = threading.get_ident()
    held = _scratch.get(thread)
    if held is None or len(held) < n_floats:
        held = _scratch[thread] = torch.empty(n_floats)
    return held


def over_parts(n: int, function: Callable[[int, int], None]) -> None:
    """Call a function on the consecutive parts [begin, end) of n things, one for each thread.

    As many threads as torch uses take part, its own ones where they can be had; C functions let go
    of the interpreter's lock.
    """
    n_parts = min(n, torch.get_num_threads())
    edges = [n * part // n_parts for part in range(n_parts + 1)] if n else [0]
    parts = list(itertools.pairwise(edges))
    if len(parts) < 2:
        for part in parts:
            function(*part)
        return
    own = _own_threads()
    if own is None:
        list(_pool(os.getpid()).map(lambda part: function(*part), parts))
    else:
        _on_own_threads(own, parts, function)


def _on_own_threads(
    openmp: ctypes.CDLL, parts: list[tuple[int, int]], function: Callable[[int, int], None]
) -> None:
    """Call the function from OpenMP's threads; what one raises is raised here."""
    left, failures = iter(parts), []

    def work(_: int | None) -> None:
        try:
            # The interpreter's lock makes this safe. A team may be smaller than was asked for.
            for part in left:
                function(*part)
        except Exception as error:
            failures.append(error)

    openmp.GOMP_parallel(_WORK(work), None, ctypes.c_uint(len(parts)), ctypes.c_uint(0))
    if failures:
        raise failures[0]


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _own_threads() -> ctypes.CDLL | None:
    """Return GNU's OpenMP as loaded by torch.

    Its threads go on spinning for a while after their work: others would wait for a core meanwhile.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line and "torch" in line}
    return ctypes.CDLL(found.pop()) if len(found) == 1 else None


@cache
def _pool(_process: int) -> ThreadPoolExecutor:
    """Return this process's threads: those of a parent do not survive a fork."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="kscout")
