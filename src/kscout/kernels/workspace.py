"""Memory shared by networks of several image sizes in turn."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar, final

import torch
from torch import Tensor

Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""Returns an uninitialized tensor of a shape and dtype."""
_Laid = TypeVar("_Laid")
_N_ALIGNED = 256
"""Alignment of tensors in bytes, the same as of torch's own allocations."""


@final
class Workspace:
    """Provides uninitialized memory to one user after the other, never to two at once.

    Memory is never freed, because a CUDA graph may use it. Layouts that fit the present memory use
    it, so that nothing is allocated after the largest one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: list[Tensor] = []

    def lay_out(self, layout: Callable[[Empty], _Laid]) -> _Laid:
        """Return the result of a layout with tensors that do not overlap; it is called twice."""
        counted = _Cut(torch.empty(0, dtype=torch.uint8, device="meta"))
        layout(counted.empty)
        fitting = [block for block in self.blocks if len(block) >= counted.n_bytes]
        if not fitting:
            fitting = [torch.empty(counted.n_bytes, dtype=torch.uint8, device=self.device)]
            self.blocks += fitting
        return layout(_Cut(min(fitting, key=len)).empty)


class _Cut:
    """Allocates consecutive tensors from a block; on the device `meta` it only counts bytes."""

    def __init__(self, block: Tensor) -> None:
        self.block, self.n_bytes = block, 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        begin, n_bytes = self.n_bytes, math.prod(shape) * dtype.itemsize
        self.n_bytes += -(-n_bytes // _N_ALIGNED) * _N_ALIGNED
        if self.block.is_meta:
            return torch.empty(*shape, dtype=dtype, device="meta")
        return self.block[begin : begin + n_bytes].view(dtype).view(*shape)
