"""The policy network in 16 bit on CUDA, forward and backward.

Convolutions go through the fused kernels, dense layers through tensor cores with 32-bit weights.
Gradients reach the network's own parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.kernels import compile_kernel
from kscout.kernels.convolution import FILE, Convolution, Features, Input, packed_order
from kscout.kernels.convolution_backward import ConvolutionBackward, backward_order
from kscout.policies.conv import ConvPolicy

_N_FLATTEN_BLOCKS = 4

_LARGEST = 16.0
"""To about this the largest gradient is scaled: far from both ends of 16-bit floats."""


class Room(NamedTuple):
    """What a pass over so many images writes, and constants that it reads."""

    features: list[Features]
    count: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, layers: Sequence[Convolution], n_images: int, device: torch.device) -> "Room":
        """Reserve it; policies see normalized images, which are read as they are."""
        return cls(
            [layer.allocate(n_images) for layer in layers],
            torch.full((), n_images, dtype=torch.int32, device=device),
            torch.zeros(n_images, device=device),
            torch.ones(n_images, device=device),
        )


@final
class HalfPrecisionConvPolicy(Policy):
    """A view of a `ConvPolicy` on CUDA; call `refresh` when its weights have changed."""

    def __init__(self, policy: ConvPolicy) -> None:
        super().__init__()
        self.policy = policy
        convolutions = [layer for layer in policy.modules() if isinstance(layer, nn.Conv2d)]
        self.weights: list[Tensor] = [layer.weight for layer in convolutions]
        self.biases: list[Tensor] = [x.bias for x in convolutions if x.bias is not None]
        self.layers, self.backwards = [], []
        for number, weight in enumerate(self.weights):
            # The first layer does not pool, so the second reads at its size.
            level = max(0, number - 1)
            mode = "pool" if number > 1 else "same"
            shape = (policy.n_rows >> level, policy.n_cols >> level)
            self.layers.append(Convolution(weight, mode, *shape))
            n_out, n_in = weight.shape[:2]
            self.backwards.append(
                ConvolutionBackward(
                    n_out, n_in, mode, *shape, pools=number > 0, device=weight.device
                )
            )
        last = self.layers[-1]
        self.flatten = compile_kernel(FILE, "flatten", *last.shape, last.n_out)
        self.room: dict[int, Room] = {}
        self._share_weights()

    def _share_weights(self) -> None:
        """Keep all packed weights, forward and backward, in one tensor, made by one gather."""
        orders, begin = [], 1
        for weight in self.weights:
            n_out, n_in = weight.shape[:2]
            pair = [packed_order(n_out, n_in)]
            if n_in > 1:
                pair.append(backward_order(n_out, n_in))
            orders += [torch.where(order > 0, order + begin - 1, 0) for order in pair]
            begin += weight.numel()
        device = self.weights[0].device
        self.order = torch.cat([order.reshape(-1) for order in orders]).to(device)
        self.packed = torch.empty(len(self.order), dtype=torch.half, device=device)
        self.zero = torch.zeros(1, device=device)
        parts = iter(self.packed.split([order.numel() for order in orders]))
        self.backward_weights: list[Tensor] = []
        for layer, weight in zip(self.layers, self.weights, strict=True):
            layer.weight = next(parts)
            self.backward_weights.append(next(parts) if weight.shape[1] > 1 else self.zero)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the network's present weights."""
        flat = torch.cat([self.zero, *(weight.reshape(-1) for weight in self.weights)])
        self.packed.copy_(flat[self.order])

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        image = seen.image.contiguous()
        given: tuple[Any, ...] = (self, image, *self.weights, *self.biases)
        features = _Convolutions.apply(*given)  # type: ignore[no-untyped-call]
        for layer in self.policy.fc_out:
            if isinstance(layer, nn.Linear):
                given = (features, layer.weight, layer.bias)
                features = _Dense.apply(*given)  # type: ignore[no-untyped-call]
            else:
                features = layer(features)
        return features

    def convolve(self, image: Float[Tensor, "batch row col"]) -> Float[Tensor, "batch feature"]:
        """Return what the dense layers read; every layer's output stays in `room`."""
        n, device = len(image), image.device
        if n not in self.room:
            self.room[n] = Room.of(self.layers, n, device)
        room = self.room[n]
        features: Features | Input = Input(image, room.mean, room.std)
        for layer, out in zip(self.layers, room.features, strict=True):
            layer(features, None, out, room.count)
            features = out
        n_rows, n_cols = self.layers[-1].shape
        flat = torch.empty(n, self.layers[-1].n_out * (n_rows // 2) * (n_cols // 2), device=device)
        arguments = [out.values, out.sums, out.n_tiles, flat, room.count]
        self.flatten((_N_FLATTEN_BLOCKS, n, 1), (256, 1, 1), arguments)
        return flat

    def weight_gradients(
        self, image: Float[Tensor, "batch row col"], gradient: Float[Tensor, "batch feature"]
    ) -> list[Float[Tensor, "out in 3 3"]]:
        """Take the gradient of `convolve`'s last result, for that image, to the weights."""
        features = self.room[len(image)].features
        norms = [layer.norms(out) for layer, out in zip(self.backwards, features, strict=True)]
        scale = torch.exp2((_LARGEST / gradient.abs().amax().clamp(min=1e-30)).log2().floor())
        n_out = self.layers[-1].n_out
        n_rows, n_cols = (size // 2 for size in self.layers[-1].shape)
        spread = (gradient * scale).view(-1, n_out, n_rows, n_cols).permute(0, 2, 3, 1)
        flowing = spread.to(torch.half, memory_format=torch.contiguous_format)
        found = []
        for number in range(len(self.layers) - 1, -1, -1):
            layer = self.backwards[number]
            derivative = layer.to_output(features[number], norms[number], flowing)
            if number == 0:
                found.append(layer.to_weight(image, None, derivative))
                break
            before = features[number - 1].values
            found.append(layer.to_weight(before, norms[number - 1], derivative))
            flowing = layer.to_input(derivative, self.backward_weights[number])
        return [(weight / scale).contiguous() for weight in reversed(found)]


class _Convolutions(torch.autograd.Function):
    """All convolutions as one operation; biases before an instance norm change nothing."""

    @staticmethod
    def forward(ctx: Any, view: HalfPrecisionConvPolicy, image: Tensor, *rest: Tensor) -> Tensor:  # noqa: ANN401 - torch's own type
        ctx.view = view
        ctx.save_for_backward(image)
        return view.convolve(image)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's own type
        view, (image,) = ctx.view, ctx.saved_tensors
        found = view.weight_gradients(image, gradients[0])
        return None, None, *found, *(torch.zeros_like(bias) for bias in view.biases)


class _Dense(torch.autograd.Function):
    """A dense layer whose products take the 10 leading bits of each factor's mantissa."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN401 - torch's own type
        ctx.save_for_backward(given, weight)
        with _tensor_cores():
            return torch.addmm(bias, given, weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401 - torch's own type
        (given, weight), gradient = ctx.saved_tensors, gradients[0].contiguous()
        with _tensor_cores():
            return gradient @ weight, gradient.T @ given, gradient.sum(dim=0)


@contextmanager
def _tensor_cores() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def can_fuse_policy(policy: Policy) -> TypeGuard[ConvPolicy]:
    """Say whether the kernels exist for this network."""
    if not isinstance(policy, ConvPolicy):
        return False
    n_channels, n_blocks = policy.n_channels, policy.n_blocks
    sides = [side >> level for side in (policy.n_rows, policy.n_cols) for level in range(n_blocks)]
    return (
        n_blocks >= 1
        and 16 <= n_channels <= 128
        and n_channels & (n_channels - 1) == 0
        and n_channels << n_blocks <= 1024
        and policy.n_rows % 2**n_blocks == policy.n_cols % 2**n_blocks == 0
        and all(side >= 8 and (side % 32 == 0 or 32 % side == 0) for side in sides)
    )
