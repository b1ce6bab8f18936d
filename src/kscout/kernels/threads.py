"""Calls of compiled C functions: arguments, scratch memory and threads."""

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_scratch: dict[int, Tensor] = {}
"""Scratch memory by thread. Python sees new OpenMP threads at each call, without local data."""


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
