"""The common part of the views of the paper's policy on a CPU and on CUDA."""

from abc import abstractmethod
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Policy
from kscout.kernels.registry import Request

KeptT = TypeVar("KeptT")
"""Cached features of some images."""


class ConvNetwork(Policy):
    """The parts of a `ConvPolicy` that its views use."""

    n_rows: int
    n_cols: int
    n_channels: int
    fc_out: nn.Sequential

    @property
    @abstractmethod
    def request(self) -> Request:
        """The network's description for the registry of kernels."""


class ConvView(Policy, Generic[KeptT]):
    """A view of a `ConvPolicy` whose features may be cached from the choice until the gradients."""

    def __init__(self, policy: ConvNetwork) -> None:
        super().__init__()
        self.policy = policy
        convolutions = [layer for layer in policy.modules() if isinstance(layer, nn.Conv2d)]
        self.weights: list[Tensor] = [layer.weight for layer in convolutions]
        self.biases: list[Tensor] = [x.bias for x in convolutions if x.bias is not None]
        first, *rest = policy.fc_out
        assert isinstance(first, nn.Linear)
        self.dense, self.rest = first, rest

    @abstractmethod
    def first_dense(self, kept: KeptT) -> Float[Tensor, "batch hidden"]:
        """Return the output of the first dense layer."""

    @abstractmethod
    def weight_gradients(
        self, image: Float[Tensor, "batch row col"], kept: KeptT, gradient: Tensor
    ) -> list[Tensor]:
        """Return gradients of the weights of the first dense layer and of each convolution."""

    def score(
        self, image: Float[Tensor, "batch row col"], kept: KeptT
    ) -> Float[Tensor, "batch col"]:
        """Score images from their features, with gradients."""
        own = (self.dense.weight, self.dense.bias, *self.weights, *self.biases)
        return self.after_dense(_FirstDense.apply(self, image, kept, *own))  # type: ignore[no-untyped-call]

    def after_dense(self, features: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch col"]:
        for layer in self.rest:
            features = layer(features)
        return features


class _FirstDense(torch.autograd.Function):
    """From cached features to the output of the first dense layer, and back to all earlier weights.

    Biases before an instance norm have no effect: their gradients are zero.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own type
        view: ConvView[KeptT],
        image: Tensor,
        kept: KeptT,
        *_: Tensor,
    ) -> Tensor:
        ctx.view, ctx.kept = view, kept
        ctx.save_for_backward(image)
        return view.first_dense(kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (image,), gradient = ctx.saved_tensors, gradients[0]
        dense, *weights = ctx.view.weight_gradients(image, ctx.kept, gradient)
        biases = [torch.zeros_like(bias) for bias in ctx.view.biases]
        return (*(None, None, None), dense, gradient.sum(dim=0), *weights, *biases)
