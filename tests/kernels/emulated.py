"""Kernels compiled as C++ and run on the CPU, thread by thread: right or wrong, but slow."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from torch import Tensor

from kscout.kernels import read_source

_HERE = Path(__file__).parent


def _can_compile() -> bool:
    """Say whether there is a C++ compiler, and one that is new enough to know 16-bit floats."""
    if shutil.which("g++") is None:
        return False
    check = ["g++", "-std=c++20", "-fsyntax-only", "-w", str(_HERE / "emulator.h")]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


HAS_COMPILER = _can_compile()


@cache
def _build(file: str, name: str, arguments: tuple[int, ...]) -> ctypes.CDLL:
    source = read_source(file).replace(read_source("device.cuh"), "")
    source = re.sub(r"^#pragma unroll.*$", "", source, flags=re.MULTILINE)
    kernel = f"{name}<{','.join(map(str, arguments))}>" if arguments else name
    text = f"""
#include "{_HERE / "emulator.h"}"
{source}
template <class... P>
static void call(void (*kernel)(P...), void** given, dim3 grid, int n_threads) {{
  int i = 0;
  std::tuple<P...> values{{*(P*)given[i++]...}};
  emulator::launch(grid, n_threads, [=] {{ std::apply(kernel, values); }});
}}
extern "C" void run(void** given, int x, int y, int z, int n_threads) {{
  call({kernel}, given, {{x, y, z}}, n_threads);
}}
"""
    folder = Path(mkdtemp(prefix="kscout-kernel-"))
    (folder / "kernel.cpp").write_text("#include <tuple>\n" + text, encoding="utf-8")
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w", "kernel.cpp", "-o", "k.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(folder / "k.so"))


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
