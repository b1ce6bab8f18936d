"""CUDA kernels, compiled on first use by torch's own compiler.

Each `.cu` file describes its kernels. They need no headers, hence no CUDA toolkit.
"""

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from kscout.kernels import KernelUnavailableError, read_source

Size = tuple[int, int, int]


class Kernel(Protocol):
    """A compiled kernel."""

    def __call__(
        self, grid: Size, block: Size, args: Sequence[object], shared_mem: int = 0
    ) -> None: ...


@cache
def compile_kernel(file: str, name: str, *arguments: int, n_bytes: int = 0) -> Kernel:
    """Compile a kernel for the current device; called with grid, block, arguments, shared bytes."""
    expression = f"{name}<{','.join(map(str, arguments))}>" if arguments else name
    try:
        # A private function of torch, which may be missing and may raise any exception.
        kernel = torch.cuda._compile_kernel(read_source(file), expression)
        kernel.set_shared_memory_config(n_bytes)
    except Exception as error:
        raise KernelUnavailableError(
            f"{expression} of {file} was not compiled ({type(error).__name__}: {str(error)[:300]})"
        ) from error
    return kernel


_counts: dict[tuple[int, torch.device], Tensor] = {}


def count_on(device: torch.device, n: int) -> Int[Tensor, ""]:
    """Return a cached count on the device, which must not be modified."""
    count = _counts.get((n, device))
    if count is None:
        count = torch.full((), n, dtype=torch.int32, device=device)
        # Memory of a graph under capture is undefined until the graph runs.
        if device.type == "cpu" or not torch.cuda.is_current_stream_capturing():
            _counts[n, device] = count
    return count
