"""Kernels compiled as C++ and run on the CPU, thread by thread: right or wrong, but slow."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kscout.kernels import read_source

_HEADER = Path(__file__).with_name("emulator.h")
# Without FORTIFY, some systems' default, which takes a jump to another stack for a mistake.
_COMPILER = ["g++", "-std=c++20", "-Og", "-U_FORTIFY_SOURCE", "-fPIC", "-w"]


@cache
def can_compile() -> bool:
    """Say whether there is a C++ compiler, and one that is new enough to know 16-bit floats."""
    if shutil.which("g++") is None:
        return False
    check = [*_COMPILER, "-fsyntax-only", str(_HEADER)]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


folder = Path()
"""Where kernels are compiled; tests that run at the same time share what they find there."""


def _compile(made: Path, source: Path) -> None:
    """Compile a file whole: another process may make the same one, or read it already."""
    aside = made.with_name(f"{os.getpid()}-{made.name}")
    command = [*_COMPILER, "-shared", str(source), "-o", str(aside)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    aside.replace(made)


@cache
def _build(file: str, name: str, arguments: tuple[int, ...]) -> ctypes.CDLL:
    source = read_source(file).replace(read_source("device.cuh"), "")
    source = re.sub(r"^#pragma unroll.*$", "", source, flags=re.MULTILINE)
    kernel = f"{name}<{','.join(map(str, arguments))}>" if arguments else name
    text = f"""#include "{_HEADER}"
{source}
template <class... P, size_t... I>
static void call(void (*kernel)(P...), void** given, std::index_sequence<I...>) {{
  kernel(*(P*)given[I]...);
}}
template <class... P>
static void each(void (*kernel)(P...), void** given) {{
  call(kernel, given, std::index_sequence_for<P...>());
}}
extern "C" void run(void** given, int x, int y, int z, int n_threads) {{
  emulator::launch({{x, y, z}}, n_threads, [=] {{ each({kernel}, given); }});
}}
"""
    made = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.so"
    if not made.exists():
        folder.mkdir(exist_ok=True)
        cpp = folder / f"{os.getpid()}-kernel.cpp"
        cpp.write_text(text, encoding="utf-8")
        _compile(made, cpp)
    return ctypes.CDLL(str(made))


def emulate(
    file: str,
    name: str,
    arguments: Sequence[int],
    grid: tuple[int, int, int],
    n_threads: int,
    values: Sequence[Tensor | int],
) -> None:
    """Run a kernel with CPU tensors; those it writes are changed in place."""
    library = _build(file, name, tuple(arguments))
    cells = []
    for value in values:
        if isinstance(value, Tensor):
            assert value.is_contiguous()
            cells.append(np.array([value.data_ptr()], dtype=np.uint64))
        else:
            # Torch passes a Python float as a double: kernels take none.
            assert isinstance(value, int)
            cells.append(np.array([value], dtype=np.int32))
    pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
    library.run(pointers, *grid, n_threads)


class Emulated:
    """Stands in for a kernel compiled for a GPU."""

    def __init__(self, file: str, name: str, *arguments: int, n_bytes: int = 0) -> None:
        self.kernel = (file, name, arguments)
        assert n_bytes <= 227 * 1024

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        values: Sequence[Tensor | int],
        n_bytes: int = 0,
    ) -> None:
        emulate(*self.kernel, grid, block[0], values)


def nan(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return what a kernel must fill."""
    return torch.full(shape, torch.nan, dtype=dtype)
