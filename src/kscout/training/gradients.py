"""Forward and backward passes of a batch: eager, or on CUDA replayed as one graph.

At the paper's batch of 16 a GPU waits for Python to launch hundreds of small kernels. A CUDA graph
launches them all at once. The optimizer stays outside, so that nothing but gradients is static.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import final

from torch import Tensor, nn
from torch.optim import Optimizer

from kscout.acquisition.graphs import Capture, GraphPool

Backward = Callable[[Sequence[Tensor]], Tensor]
"""From the tensors that describe a batch to its losses, whose gradients it leaves in the
parameters; it never waits for the device."""


@final
class EagerGradients:
    """Computes the gradients of a batch into the parameters and returns its losses."""

    def __init__(self, backward: Backward, parameters: Iterable[nn.Parameter]) -> None:
        self.backward = backward
        self.parameters = list(parameters)

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        return self.backward(batch).detach()


@final
class GraphedGradients:
    """The same as a CUDA graph, for batches with the shapes of an example; others run eagerly.

    Args:
        backward: must read its data from memory that stays in place.
        parameters: those that are trained.
        example: tensors of a full batch; their values do not matter.
        pool: memory that other graphs share, whose gradients are used up before another one runs.
    """

    def __init__(
        self,
        backward: Backward,
        parameters: Iterable[nn.Parameter],
        example: Sequence[Tensor],
        pool: GraphPool | None = None,
    ) -> None:
        self.eager = EagerGradients(backward, parameters)
        self.graph = Capture(lambda *batch: (self.eager(batch),), example, pool)
        self.gradients = [parameter.grad for parameter in self.eager.parameters]

    def __call__(self, batch: Sequence[Tensor]) -> Tensor:
        if any(a.shape != b.shape for a, b in zip(batch, self.graph.given, strict=True)):
            return self.eager(batch)
        (losses,) = self.graph(batch)
        for parameter, gradient in zip(self.eager.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return losses


def take_step(optimizer: Optimizer, rate: float) -> None:
    """Take an optimizer step with this learning rate, and clear the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
