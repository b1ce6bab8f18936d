"""The policy network on a CPU, with features cached from the choice until the gradients.

The images of several steps are then propagated back together: the gradients of the dense layers,
as large as all other weights together, are written once, and weights are transformed once.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.kernels.registry import serving
from kscout.policies.conv import ConvPolicy, policy_request
from kscout.policies.conv_cpu import Passed, packed, pass_backward, pass_forward


@final
@dataclass(frozen=True)
class Kept:
    """Activations of the network for some images, with the weights that computed them."""

    weights: list[Tensor]
    """Packed weights of the convolutions."""
    layers: list[Passed]
    flat: Float[Tensor, "image feature"]
    """Input of the first dense layer."""
    hidden: Float[Tensor, "image hidden"]
    """Output of the first dense layer."""

    def part(self, begin: int, end: int) -> "Kept":
        """Return the part for some of the images."""
        layers = [layer.part(begin, end) for layer in self.layers]
        rest = self.flat[begin:end], self.hidden[begin:end]
        return Kept(self.weights, layers, *rest)


@final
class KeptConvPolicy(Policy):
    """A view of a `ConvPolicy` on a CPU; without compiled kernels it behaves like the policy.

    Args:
        policy: the network.
    """

    def __init__(self, policy: ConvPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.memory: tuple[list[Passed], Tensor, Tensor] | None = None
        """Memory for activations, which is reused: the system would zero new memory by pages."""
        convolutions = [layer for layer in policy.modules() if isinstance(layer, nn.Conv2d)]
        self.weights: list[Tensor] = [layer.weight for layer in convolutions]
        self.biases: list[Tensor] = [x.bias for x in convolutions if x.bias is not None]
        first, *rest = policy.fc_out
        assert isinstance(first, nn.Linear)
        self.dense, self.rest = first, rest
        self.kept: Kept | None = None
        self.n_kept = 0

    @property
    def chooser(self) -> Policy:
        """The network itself."""
        return self.policy

    def refresh(self) -> None:
        """Discard cached features; the next `keep` reads the weights."""
        self.kept = None

    @torch.no_grad()
    def keep(self, n_images: int, n_bytes: int) -> int:
        """Cache the features of all images that are scored next, or of none if memory is short.

        Returns:
            Number of cached images.
        """
        self.kept, self.n_kept = None, 0
        is_short = not 0 < self.n_bytes_kept(n_images) <= n_bytes
        if is_short or serving("policy", policy_request(self.policy)) != "c":
            return 0
        if self.memory is None or len(self.memory[-1]) < n_images:
            self.memory = self._reserve(n_images)
        weights = [packed(weight) for weight in self.weights]
        self.kept = Kept(weights, *self.memory)
        return n_images

    def n_bytes_kept(self, n_images: int) -> int:
        """Return the number of bytes that `keep` allocates."""
        n_floats = self.dense.in_features + self.dense.out_features
        for number, (n_rows, n_cols, n_channels) in enumerate(self._shapes()):
            # Pooled to a quarter, except for the first.
            n_floats += n_rows * n_cols * n_channels * (5 if number else 8) // 4
        return 4 * n_images * n_floats

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        if self.kept is None or torch.is_grad_enabled():
            return self.policy(seen)
        begin, self.n_kept = self.n_kept, self.n_kept + len(seen.image)
        own = self.kept.part(begin, self.n_kept)
        features = seen.image
        for weights, layer in zip(own.weights, own.layers, strict=True):
            features = pass_forward(features, weights, layer).normalized.output
        own.flat.unflatten(1, (features.shape[-1], *features.shape[1:3])).copy_(
            features.permute(0, 3, 1, 2)
        )
        own.hidden.copy_(self.dense(own.flat))
        return self._score(own.hidden)

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Score images again with gradients; the first of them was scored as number `begin`.

        The backward pass overwrites cached features, so it can run once per image.
        """
        if self.kept is None:
            return self.policy(seen)
        image = seen.image
        own = (self.dense.weight, self.dense.bias, *self.weights, *self.biases)
        kept = self.kept.part(begin, begin + len(image))
        return self._score(_FirstDense.apply(self, image, kept, *own))  # type: ignore[no-untyped-call]

    def _score(self, hidden: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch col"]:
        for layer in self.rest:
            hidden = layer(hidden)
        return hidden

    def _shapes(self) -> list[tuple[int, int, int]]:
        """Return rows, columns and channels of the output of each convolution."""
        # The first layer does not pool, so the second has the same size.
        levels = [max(0, number - 1) for number in range(len(self.weights))]
        size = self.policy.n_rows, self.policy.n_cols
        pairs = zip(levels, self.weights, strict=True)
        return [(size[0] >> level, size[1] >> level, len(weight)) for level, weight in pairs]

    def _reserve(self, n_images: int) -> tuple[list[Passed], Tensor, Tensor]:
        layers = [
            Passed.empty(n_images, *shape, pools=number > 0)
            for number, shape in enumerate(self._shapes())
        ]
        flat, hidden = (
            torch.empty(n_images, n) for n in (self.dense.in_features, self.dense.out_features)
        )
        return layers, flat, hidden

    def weight_gradients(
        self, image: Float[Tensor, "batch row col"], kept: Kept, gradient: Tensor
    ) -> list[Float[Tensor, "out in 3 3"]]:
        """Propagate a gradient of `kept.flat` to the convolutions' weights."""
        inputs = [image, *(layer.normalized.output for layer in kept.layers)]
        n_rows, n_cols, n_channels = inputs[-1].shape[1:]
        flow = gradient.unflatten(1, (n_channels, n_rows, n_cols)).permute(0, 2, 3, 1)
        found = []
        for number in range(len(self.weights) - 1, -1, -1):
            layer, weight = kept.layers[number], self.weights[number]
            before, weights = pass_backward(inputs[number], weight, layer, flow, in_place=True)
            found.append(weights)
            flow = flow if before is None else before
        return found[::-1]


class _FirstDense(torch.autograd.Function):
    """From cached features to the output of the first dense layer, and back to all earlier weights.

    Biases before an instance norm have no effect: their gradients are zero.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own type
        view: KeptConvPolicy,
        image: Tensor,
        kept: Kept,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.view, ctx.kept = view, kept
        ctx.save_for_backward(image)
        return kept.hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        view, kept, (image,), gradient = ctx.view, ctx.kept, ctx.saved_tensors, gradients[0]
        return (
            *(None, None, None),
            gradient.T @ kept.flat,
            gradient.sum(dim=0),
            *view.weight_gradients(image, kept, gradient @ view.dense.weight),
            *(torch.zeros_like(bias) for bias in view.biases),
        )
