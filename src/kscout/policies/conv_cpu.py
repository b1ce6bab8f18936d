"""The convolutions of the paper's policy on a CPU: the same function and gradients, faster.

Features are stored channels last, which is fast in oneDNN and pooling. The first convolution has
one channel and is a matrix product of shifted images. ReLU follows pooling, with which it commutes.
The backward pass of instance norm reads memory few times; torch's takes as long as that of the
convolution. If compiled kernels are available, layers run forward and backward in
`kernels/convolution_cpu.c`, and a training may cache their features from the choice until the
gradients (`KeptConvPolicy`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.core import Observation
from kscout.kernels import convolution_cpu as compiled
from kscout.kernels.registry import Request, serving
from kscout.policies.conv_view import ConvNetwork, ConvView

_EPSILON = 1e-5


class InstanceNormLast(torch.autograd.Function):
    """Instance norm of features stored channels last."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        features: Float[Tensor, "batch channel row col"],
    ) -> Float[Tensor, "batch channel row col"]:
        pixels = features.permute(0, 2, 3, 1)
        centered = pixels - _mean(pixels)
        scale = (_mean(centered.square()) + _EPSILON).rsqrt_()
        normalized = centered.mul_(scale)
        ctx.save_for_backward(normalized, scale)
        return normalized.permute(0, 3, 1, 2)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch's context
        *gradients: Float[Tensor, "batch channel row col"],
    ) -> Float[Tensor, "batch channel row col"]:
        normalized, scale = ctx.saved_tensors
        gradient = gradients[0].permute(0, 2, 3, 1)
        along = _mean(gradient * normalized)
        centered = gradient - _mean(gradient)
        grads = centered.addcmul_(normalized, along, value=-1).mul_(scale)
        return grads.permute(0, 3, 1, 2)


def _mean(pixels: Float[Tensor, "batch row col channel"]) -> Float[Tensor, "batch 1 1 channel"]:
    # In two stages, as one long float32 sum is inaccurate, which changes maxima and gradients.
    return pixels.mean(dim=2, keepdim=True).mean(dim=1, keepdim=True)


class Passed(NamedTuple):
    """Results of a compiled layer: convolved, normalized, and pooled except in the first."""

    convolved: Float[Tensor, "batch row col channel"]
    normalized: compiled.NormResults

    @classmethod
    def empty(cls, n: int, n_rows: int, n_cols: int, n_channels: int, *, pools: bool) -> "Passed":
        convolved = torch.empty(n, n_rows, n_cols, n_channels)
        return cls(convolved, compiled.NormResults.empty(convolved, pools=pools))

    def part(self, begin: int, end: int) -> "Passed":
        normalized = compiled.NormResults(*(x[begin:end] for x in self.normalized))
        return Passed(self.convolved[begin:end], normalized)


def pass_forward(
    features: Float[Tensor, "batch row col *channel"],
    weights: Float[Tensor, "..."],
    to: Passed | None = None,
) -> Passed:
    """Run one layer: 3x3 convolution, instance norm, ReLU, and pooling in all but the first.

    The input is images for the first layer, otherwise features with channels last; weights are
    packed except for the first layer.
    """
    is_first = features.ndim == 3
    convolve = compiled.convolve_first if is_first else compiled.convolve
    convolved = convolve(features, weights, None if to is None else to.convolved)
    output = None if to is None else to.normalized
    return Passed(convolved, compiled.normalize(convolved, pools=not is_first, to=output))


def pass_backward(
    features: Float[Tensor, "batch row col *channel"],
    weight: Float[Tensor, "out_channel channel 3 3"],
    passed: Passed,
    gradient: Float[Tensor, "batch out_row out_col out_channel"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "batch row col channel"] | None, Tensor]:
    """Return the gradients of a layer's input (None for images) and of its weights.

    If `in_place`, `convolved` is overwritten: new memory costs as much as the norm.
    """
    is_first = features.ndim == 3
    gradient = compiled.normalize_backward(gradient, *passed, pools=not is_first, in_place=in_place)
    if is_first:
        return None, compiled.first_weight_gradient(features, gradient)
    weights = compiled.weight_gradient(features, gradient)
    # The adjoint is a convolution with mirrored weights, inputs and outputs exchanged.
    mirrored = compiled.transform_weights(weight.flip(2, 3).transpose(0, 1))
    return compiled.convolve(gradient, mirrored), weights


class CompiledLayer(torch.autograd.Function):
    """One layer of compiled kernels.

    The norm removes a bias, so that it has no effect and a gradient of zero.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        features: Float[Tensor, "batch row col *channel"],
        weight: Float[Tensor, "out_channel channel 3 3"],
        bias: Float[Tensor, " out_channel"],
    ) -> Float[Tensor, "batch out_row out_col out_channel"]:
        passed = pass_forward(features, packed(weight))
        ctx.save_for_backward(features, weight, bias, passed.convolved, *passed.normalized)
        return passed.normalized.output

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - torch's context
        *gradients: Float[Tensor, "batch out_row out_col out_channel"],
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        features, weight, bias, convolved, *normalized = ctx.saved_tensors
        passed = Passed(convolved, compiled.NormResults(*normalized))
        grads = pass_backward(features, weight, passed, gradients[0])
        return *grads, torch.zeros_like(bias)


def packed(weight: Float[Tensor, "out_channel channel 3 3"]) -> Float[Tensor, "..."]:
    """Return weights in the layout of `pass_forward`."""
    return weight.detach() if weight.shape[1] == 1 else compiled.transform_weights(weight)


def _run_compiled(
    image: Float[Tensor, "batch row col"], layers: Sequence[nn.Module]
) -> Float[Tensor, "batch channel out_row out_col"] | None:
    """Run all layers by compiled kernels; return None if there are none."""
    request = Request(
        image.device,
        frozenset({image.dtype}),
        n_channels=len(_weight_and_bias(layers[0])[0]),
        differentiates_images=image.requires_grad,
    )
    if serving("policy", request) != "c":
        return None
    features = image
    for layer in layers:
        features = CompiledLayer.apply(features, *_weight_and_bias(layer))  # type: ignore[no-untyped-call]
    return features.permute(0, 3, 1, 2)


def _weight_and_bias(layer: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Conv2d) and layer.bias is not None
    return layer.weight, layer.bias


def convolve_on_cpu(
    image: Float[Tensor, "batch row col"], layers: Sequence[nn.Module]
) -> Float[Tensor, "batch channel out_row out_col"]:
    """Apply 3x3 convolutions, each with instance norm and ReLU; all but the first then pool."""
    grads = _run_compiled(image, layers)
    if grads is not None:
        return grads
    features = F.relu(_normalize(_convolve_one_channel(image, layers[0])))
    for layer in layers[1:]:
        convolved = layer(features)
        features = F.max_pool2d(_normalize(convolved), kernel_size=2).relu_()
    return features


def _normalize(
    features: Float[Tensor, "batch channel row col"],
) -> Float[Tensor, "batch channel row col"]:
    return InstanceNormLast.apply(features)  # type: ignore[no-untyped-call]


def _convolve_one_channel(
    image: Float[Tensor, "batch row col"], layer: nn.Module
) -> Float[Tensor, "batch channel row col"]:
    assert isinstance(layer, nn.Conv2d)
    n_images, n_rows, n_cols = image.shape
    padded = F.pad(image, (1, 1, 1, 1))
    shifted = [
        padded[:, row : row + n_rows, col : col + n_cols] for row in range(3) for col in range(3)
    ]
    patches = torch.stack(shifted, dim=-1).flatten(0, 2)
    features = F.linear(patches, layer.weight.flatten(start_dim=1), layer.bias)
    return features.view(n_images, n_rows, n_cols, -1).permute(0, 3, 1, 2)


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
        layers = [layer.part(begin, end) for layer in self.layers]
        rest = self.flat[begin:end], self.hidden[begin:end]
        return Kept(self.weights, layers, *rest)


@final
class KeptConvPolicy(ConvView[Kept]):
    """A view of a `ConvPolicy` on a CPU; without compiled kernels it behaves like the policy.

    The images of several steps are propagated back together: the gradients of the dense layers, as
    large as all other weights together, are written once, and weights are transformed once.
    """

    def __init__(self, policy: ConvNetwork) -> None:
        super().__init__(policy)
        self.memory: tuple[list[Passed], Tensor, Tensor] | None = None
        """Memory for activations, which is reused: the system would zero new memory by pages."""
        self.kept: Kept | None = None
        self.n_kept = 0

    @property
    def chooser(self) -> ConvNetwork:
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
        if is_short or serving("policy", self.policy.request) != "c":
            return 0
        if self.memory is None or len(self.memory[-1]) < n_images:
            self.memory = self._reserve(n_images)
        weights = [packed(weight) for weight in self.weights]
        self.kept = Kept(weights, *self.memory)
        return n_images

    def n_bytes_kept(self, n_images: int) -> int:
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
        return self.after_dense(own.hidden)

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Score images again with gradients; the first of them was scored as number `begin`.

        The backward pass overwrites cached features, so it can run once per image.
        """
        if self.kept is None:
            return self.policy(seen)
        return self.score(seen.image, self.kept.part(begin, begin + len(seen.image)))

    def first_dense(self, kept: Kept) -> Float[Tensor, "batch hidden"]:
        return kept.hidden.clone()

    def _shapes(self) -> list[tuple[int, int, int]]:
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
    ) -> list[Tensor]:
        inputs = [image, *(layer.normalized.output for layer in kept.layers)]
        n_rows, n_cols, n_channels = inputs[-1].shape[1:]
        flow = (gradient @ self.dense.weight).unflatten(1, (n_channels, n_rows, n_cols))
        flow = flow.permute(0, 2, 3, 1)
        found: list[Tensor] = []
        for number in range(len(self.weights) - 1, -1, -1):
            layer, weight = kept.layers[number], self.weights[number]
            before, weights = pass_backward(inputs[number], weight, layer, flow, in_place=True)
            found.append(weights)
            flow = flow if before is None else before
        return [gradient.T @ kept.flat, *found[::-1]]
