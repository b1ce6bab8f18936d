"""Forward and backward passes of a batch: eager, or on CUDA replayed as one graph.

At the paper's batch of 16 a GPU waits for Python to launch hundreds of small kernels. A CUDA graph
launches them all at once. The optimizer stays outside, so that nothing but gradients is static.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn

Backward = Callable[[Sequence[Tensor]], Tensor]
"""From the tensors that describe a batch to its losses, whose gradients it leaves in the
parameters; it never waits for the device."""


@final
class EagerGradients:
    """Leaves the gradients of a batch in the parameters and returns its losses."""

    def __init__(self, backward: Backward, parameters: Iterable[nn.Parameter]) -> None:
        self.backward = backward
        self.parameters = list(parameters)

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        return self.backward(batch).detach()


@final
class GraphedGradients:
    """The same for batches like an example, as a CUDA graph; other shapes run eagerly.

    Args:
        backward: must read its data from memory that stays in place.
        parameters: those that are trained.
        example: tensors of a full batch; their values do not matter.
    """

    def __init__(
        self, backward: Backward, parameters: Iterable[nn.Parameter], example: Sequence[Tensor]
    ) -> None:
        self.eager = EagerGradients(backward, parameters)
        self.inputs = [tensor.clone() for tensor in example]
        self.graph = torch.cuda.CUDAGraph()
        # Warming up on a side stream makes plans and workspaces before the capture begins.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.eager(self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph):
            self.result = self.eager(self.inputs)
        self.gradients = [parameter.grad for parameter in self.eager.parameters]

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        if any(a.shape != b.shape for a, b in zip(batch, self.inputs, strict=True)):
            return self.eager(batch)
        for static, given in zip(self.inputs, batch, strict=True):
            static.copy_(given)
        self.graph.replay()
        for parameter, gradient in zip(self.eager.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.result
