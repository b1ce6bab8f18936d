"""A function of tensors on CUDA, replayed as graphs.

Reconstruction and policy of one slice are hundreds of small kernels, and launching each of them
takes longer than running it. A CUDA graph launches them all at once.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)

Function = Callable[..., tuple[Tensor, ...]]
"""Of tensors on one device; it reads no value back."""
MOST_GRAPHS = 16
"""That are kept; the oldest makes room."""
MOST_BYTES = 2**30
"""Work that takes more memory is not worth a graph, which would keep that memory."""
_N_WARMING = 3
"""Runs that make plans and workspaces before a capture begins."""
_N_TRIES = 2
"""What another thread does for the first time, such as loading a kernel, may spoil a capture."""
_CAPTURING = threading.Lock()
"""Before a capture begins the whole device is waited for, which would spoil another one."""


@final
class Graphs:
    """Calls a function by a graph for each shape of its arguments; used by one thread at a time.

    What cannot be captured, such as a function that waits for the device, is called as it is.

    Args:
        function: whose results depend on the values of its arguments alone.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._kept: dict[tuple[torch.Size, ...], _Graph | None] = {}
        self._pool: Any = None

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple(x.shape for x in given)
        if shapes not in self._kept:
            if len(self._kept) >= MOST_GRAPHS:
                del self._kept[next(iter(self._kept))]
            self._kept[shapes] = self._captured(given)
        graph = self._kept[shapes]
        return self._function(*given) if graph is None else graph(given)

    def _captured(self, given: tuple[Tensor, ...]) -> "_Graph | None":
        reason = ""
        for _ in range(_N_TRIES):
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            try:
                with _CAPTURING:
                    return _Graph(self._function, given, self._pool)
            except RuntimeError as error:
                reason, self._pool = str(error).partition("\n")[0], None
        _LOG.warning("decisions take longer than they could: no CUDA graph (%s)", reason)
        return None


@final
class _Graph:
    """One capture, its arguments and its results in memory that stays in place."""

    def __init__(self, function: Function, given: tuple[Tensor, ...], pool: Any) -> None:  # noqa: ANN401
        device = given[0].device
        self._given = [x.clone() for x in given]
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(here)
            # Left by this block even where a capture fails, which leaves its own stream in place.
            with torch.cuda.stream(side):
                for _ in range(_N_WARMING):
                    function(*self._given)
                # Other threads go on asking for memory meanwhile.
                mode = "thread_local"
                with torch.cuda.graph(self._graph, pool, side, capture_error_mode=mode):
                    self._results = function(*self._given)
            here.wait_stream(side)

    def __call__(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for own, value in zip(self._given, given, strict=True):
            own.copy_(value)
        self._graph.replay()
        # The next replay, of this graph or of another of the pool, writes over them.
        return tuple(x.clone() for x in self._results)
