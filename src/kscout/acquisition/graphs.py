"""A function of tensors on CUDA, replayed as graphs.

Reconstruction and policy of a few slices are hundreds of small kernels, and launching each of them
takes longer than running it. A CUDA graph launches them all at once. Sessions are answered by
`Graphs`, trainings take the gradients of a batch by one `Capture`.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import final

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
        self._kept: dict[tuple[torch.Size, ...], Capture | None] = {}
        self._pool: Pool | None = None

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple(x.shape for x in given)
        if shapes not in self._kept:
            if len(self._kept) >= MOST_GRAPHS:
                del self._kept[next(iter(self._kept))]
            self._kept[shapes] = self._captured(given)
        graph = self._kept[shapes]
        if graph is None:
            return self._function(*given)
        return tuple(x.clone() for x in graph(given))

    def _captured(self, given: tuple[Tensor, ...]) -> "Capture | None":
        reason = ""
        for _ in range(_N_TRIES):
            self._pool = self._pool or Pool(given[0].device)
            try:
                return Capture(self._function, given, self._pool)
            except RuntimeError as error:
                reason, self._pool = str(error).partition("\n")[0], None
        _LOG.warning("decisions take longer than they could: no CUDA graph (%s)", reason)
        return None


@final
class Pool:
    """Memory that several captures share; one of them is made, or runs, at a time.

    What is free goes to none but the stream that it was taken on, so that they share that, too.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self.handle, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()


@final
class Capture:
    """One graph of a function, whose arguments and results lie in memory that stays in place.

    Args:
        function: it waits for nothing, and leaves nothing behind that its first runs do not.
        given: arguments like those to come; their values do not matter.
        pool: memory that other captures share; its own if not given.
    """

    def __init__(
        self, function: Function, given: Sequence[Tensor], pool: Pool | None = None
    ) -> None:
        self.given = [x.clone() for x in given]
        self._graph = torch.cuda.CUDAGraph()
        device = given[0].device if given else torch.device("cuda", torch.cuda.current_device())
        pool = pool or Pool(device)
        with _CAPTURING, torch.cuda.device(device):
            here, side = torch.cuda.current_stream(), pool.stream
            side.wait_stream(here)
            # Left by this block even where a capture fails, which leaves its own stream in place.
            with torch.cuda.stream(side):
                for _ in range(_N_WARMING):
                    function(*self.given)
                # Other threads go on asking for memory meanwhile.
                mode = "thread_local"
                with torch.cuda.graph(self._graph, pool.handle, side, capture_error_mode=mode):
                    self._results = function(*self.given)
            here.wait_stream(side)

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the graph; what it returns is written over by its next run, or one of its pool."""
        for own, value in zip(self.given, given, strict=True):
            own.copy_(value)
        self._graph.replay()
        return self._results
