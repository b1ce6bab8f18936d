"""Functions of CUDA tensors, and forward and backward passes, replayed as CUDA graphs.

Reconstruction and policy of a few slices run hundreds of small kernels, each of which takes longer
to launch than to run. So does the paper's batch of 16 in a training. A CUDA graph launches all of
them at once. Sessions use `Graphs`, trainings `BatchGradients`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn

_LOG = logging.getLogger(__name__)

Function = Callable[..., tuple[Tensor, ...]]
"""A function of tensors on one device that copies no value to the host."""
MOST_GRAPHS = 16
"""Largest number of stored graphs; the oldest one is removed first."""
MOST_BYTES = 2**30
"""Computations that need more memory are not captured: a graph would keep this memory."""
_N_WARMING = 3
"""Runs before a capture, which create plans and workspaces."""
_N_TRIES = 2
"""Attempts: a first call in another thread, such as loading a kernel, may break a capture."""
_CAPTURING = threading.Lock()
"""Serializes captures: each synchronizes the device first, which would break another one."""


@final
class Graphs:
    """Calls a function with one graph per shape of its arguments; used by one thread at a time.

    A function that cannot be captured, for example because it synchronizes, is called directly.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._kept: dict[tuple[torch.Size, ...], Capture | None] = {}
        self._pool: GraphPool | None = None

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
            self._pool = self._pool or GraphPool(given[0].device)
            try:
                return Capture(self._function, given, self._pool)
            except RuntimeError as error:
                reason, self._pool = str(error).partition("\n")[0], None
        _LOG.warning("decisions take longer than they could: no CUDA graph (%s)", reason)
        return None


@final
class GraphPool:
    """Memory shared by several captures; only one of them is captured or runs at a time.

    Free memory is only reused on the stream of its allocation, so the captures share a stream.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self.handle, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()


@final
class Capture:
    """One graph of a function, with arguments and results at fixed addresses.

    Args:
        function: it must not synchronize, and only its first runs may have side effects.
        pool: memory shared with other captures; by default a new pool.
    """

    def __init__(
        self, function: Function, given: Sequence[Tensor], pool: GraphPool | None = None
    ) -> None:
        self.given = [x.clone() for x in given]
        self._graph = torch.cuda.CUDAGraph()
        device = given[0].device if given else torch.device("cuda", torch.cuda.current_device())
        pool = pool or GraphPool(device)
        with _CAPTURING, torch.cuda.device(device):
            here, side = torch.cuda.current_stream(), pool.stream
            side.wait_stream(here)
            # This block restores the stream if a capture fails, which the capture itself does not.
            with torch.cuda.stream(side):
                for _ in range(_N_WARMING):
                    function(*self.given)
                # Other threads continue to allocate memory.
                mode = "thread_local"
                with torch.cuda.graph(self._graph, pool.handle, side, capture_error_mode=mode):
                    self._results = function(*self.given)
            here.wait_stream(side)

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the graph; the next run of any graph of the pool overwrites the results."""
        for own, value in zip(self.given, given, strict=True):
            own.copy_(value)
        self._graph.replay()
        return self._results


Backward = Callable[[Sequence[Tensor]], Tensor]
"""From the tensors that describe a batch to its losses, whose gradients it leaves in the
parameters; it never waits for the device."""


@final
class BatchGradients:
    """Computes the gradients of a batch into the parameters and returns its losses.

    With an example, batches of its shapes run as one CUDA graph. The optimizer stays outside of it,
    so that nothing but gradients is static.

    Args:
        backward: in a graph, it must read its data from memory that stays in place.
        parameters: those that are trained.
        example: tensors of a full batch; their values do not matter.
        pool: memory that other graphs share, whose gradients are used up before another one runs.
    """

    def __init__(
        self,
        backward: Backward,
        parameters: Iterable[nn.Parameter],
        example: Sequence[Tensor] | None = None,
        pool: GraphPool | None = None,
    ) -> None:
        self.backward, self.parameters = backward, list(parameters)
        self.graph: Capture | None = None
        if example is not None:
            self.graph = Capture(lambda *batch: (self._eager(batch),), example, pool)
            self.gradients = [parameter.grad for parameter in self.parameters]

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        shapes = [x.shape for x in batch]
        if self.graph is None or shapes != [x.shape for x in self.graph.given]:
            return self._eager(batch)
        (losses,) = self.graph(batch)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return losses

    def _eager(self, batch: Sequence[Tensor]) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        return self.backward(batch).detach()
