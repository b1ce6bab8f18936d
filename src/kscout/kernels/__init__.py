"""CUDA kernels, compiled when first used by the compiler that ships with torch.

Each `.cu` file says what its kernels do. They need no headers, hence no CUDA toolkit.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


@cache
def compile_kernel(file: str, name: str, *arguments: int) -> Any:  # noqa: ANN401 - torch's own type
    """Compile a kernel for the current device; called with grid, block, arguments, shared bytes.

    Args:
        file: name of the source file beside this one.
        name: the kernel.
        arguments: its template arguments.
    """
    source = read_source(file)
    expression = f"{name}<{','.join(map(str, arguments))}>" if arguments else name
    return torch.cuda._compile_kernel(source, expression)


def read_source(file: str) -> str:
    """Return a source file with those of this folder that it includes in their places."""
    lines = []
    for line in Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r'#include "(.+)"', line)
        lines.append(read_source(match[1]) if match else line)
    return "\n".join(lines) + "\n"


_counts: dict[tuple[int, torch.device], Tensor] = {}


def count_on(device: torch.device, n: int) -> Int[Tensor, ""]:
    """Return a count on the device, made once and shared: do not change it."""
    count = _counts.get((n, device))
    if count is None:
        count = torch.full((), n, dtype=torch.int32, device=device)
        # Memory of a graph under capture holds nothing until the graph runs.
        if device.type == "cpu" or not torch.cuda.is_current_stream_capturing():
            _counts[n, device] = count
    return count
