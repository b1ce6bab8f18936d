"""The policy network in 16 bit on CUDA, forward and backward.

Convolutions use the fused kernels, the large dense layer after them 16-bit products with 32-bit
sums; small dense layers stay in 32 bit. Gradients reach the network's parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.core import Observation
from kscout.kernels.convolution import LAST, Convolution, Features, Input, packed_order
from kscout.kernels.convolution_backward import (
    Before,
    ConvolutionBackward,
    FirstBackward,
    LastSums,
    backward_order,
)
from kscout.kernels.cuda import compile_kernel
from kscout.kernels.registry import widening
from kscout.policies.conv_view import ConvNetwork, ConvView

_N_FLATTEN_BLOCKS = 4

_LARGEST = 256.0
"""Scale of the largest gradient of the output of the first dense layer. Its products with weights
of a hundredth are then in the middle of the range of 16-bit floats."""


@final
@dataclass(frozen=True)
class Room:
    """Buffers and constants of a pass over images."""

    features: list[Features]
    """Output of each convolution."""
    flat: Tensor
    """Input of the first dense layer, channels last."""
    count: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, layers: Sequence[Convolution], n_images: int, device: torch.device) -> "Room":
        """Allocate the buffers; images are normalized already."""
        n_rows, n_cols = (size // 2 for size in layers[-1].shape)
        n_flat = layers[-1].n_out * n_rows * n_cols
        return cls(
            [layer.allocate(n_images) for layer in layers],
            torch.empty(n_images, n_flat, dtype=torch.half, device=device),
            torch.full((), n_images, dtype=torch.int32, device=device),
            torch.zeros(n_images, device=device),
            torch.ones(n_images, device=device),
        )

    def part(self, begin: int, end: int) -> "Room":
        own = slice(begin, end)
        features = [x.part(own) for x in self.features]
        # The count of all images is at least that of the part, and a pass covers no more images.
        return Room(features, self.flat[own], self.count, self.mean[own], self.std[own])


@final
class HalfPrecisionConvPolicy(ConvView[Room]):
    """A view of a `ConvPolicy` on CUDA; `refresh` must follow each change of its weights."""

    def __init__(self, policy: ConvNetwork) -> None:
        super().__init__(policy)
        self.widening = widening(policy.n_channels)
        self.layers: list[Convolution] = []
        self.backwards: list[ConvolutionBackward] = []
        for number, weight in enumerate(self.weights):
            # The first layer does not pool, so the input of the second has the same size.
            level = max(0, number - 1)
            mode = "pooled" if number > 1 else "same"
            shape = (policy.n_rows >> level, policy.n_cols >> level)
            pools = number > 0
            n_out, n_in = self._widths(weight)
            wide = weight.new_zeros(n_out, n_in, 3, 3)
            self.layers.append(Convolution(wide, mode, *shape, pools=pools))
            if pools:
                self.backwards.append(ConvolutionBackward(n_out, n_in, *shape, weight.device))
            else:
                self.first_backward = FirstBackward(n_out, *shape, weight.device)
        last = self.layers[-1]
        n_rows, n_cols = last.shape
        self.last_sums = LastSums(last.n_out, n_rows // 2, n_cols // 2)
        self.flatten = compile_kernel(LAST, "flatten", *last.shape, last.n_out)
        self.rooms: dict[tuple[int, bool], Room] = {}
        self.kept: Room | None = None
        self.n_scored = 0
        self._share_weights()

    def _widths(self, weight: Float[Tensor, "out in 3 3"]) -> tuple[int, int]:
        """Return a convolution's output and input channels, including those of zeros."""
        n_out, n_in = weight.shape[:2]
        return n_out * self.widening, n_in * self.widening if n_in > 1 else 1

    def _share_weights(self) -> None:
        """Store all packed weights, forward and backward, in one tensor, computed by one gather."""
        orders, begin = [], 1
        for weight in self.weights:
            n_out, n_in = self._widths(weight)
            places = _wide_places(weight, n_out, n_in, begin)
            orders.append(places[packed_order(n_out, n_in)])
            if n_in > 1:
                orders.append(places[backward_order(n_out, n_in)])
            begin += weight.numel()
        device = self.weights[0].device
        self.order = torch.cat([order.reshape(-1) for order in orders]).to(device)
        self.packed = torch.empty(len(self.order), dtype=torch.half, device=device)
        n_hidden, n_flat = self.dense.weight.shape
        shape = (n_hidden, n_flat * self.widening)
        self.packed_dense = torch.zeros(shape, dtype=torch.half, device=device)
        self.zero = torch.zeros(1, device=device)
        parts = iter(self.packed.split([order.numel() for order in orders]))
        self.backward_weights: list[Tensor] = []
        for layer, weight in zip(self.layers, self.weights, strict=True):
            layer.weight = next(parts)
            self.backward_weights.append(next(parts) if weight.shape[1] > 1 else self.zero)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Load the present weights of the network, and discard cached features."""
        flat = torch.cat([self.zero, *(weight.reshape(-1) for weight in self.weights)])
        self.packed.copy_(flat[self.order])
        n_wide, n_own = self.layers[-1].n_out, self.layers[-1].n_out // self.widening
        by_channel = self.dense.weight.unflatten(1, (n_own, -1)).transpose(1, 2)
        self.packed_dense.unflatten(1, (-1, n_wide))[..., :n_own].copy_(by_channel)
        self.kept = None

    @property
    def chooser(self) -> "HalfPrecisionConvPolicy":
        """This view, with the weights of its last `refresh`."""
        return self

    def keep(self, n_images: int, n_bytes: int) -> int:
        """Cache the features of the images that are scored next, within the memory limit.

        Returns:
            Number of cached images: the first ones.
        """
        per_image = sum(5 * x.n_out * x.shape[0] * x.shape[1] // 2 for x in self.layers)
        n_fit = n_bytes // (per_image + 2 * self.packed_dense.shape[1])
        # Buffers are allocated for powers of two.
        n_kept = min(n_images, 1 << n_fit.bit_length() >> 1)
        self.kept, self.n_scored = self._room(n_kept, keeps=True) if n_kept else None, 0
        return n_kept

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        image = seen.image.contiguous()
        room = None
        if not torch.is_grad_enabled():
            room = self._kept_room(self.n_scored, len(image))
            self.n_scored += len(image)
        if room is None:
            room = self._room(len(image))
        self._convolve(image, room)
        return self.score(image, room)

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Score images again with gradients; the first of them was scored as number `begin`."""
        room = self._kept_room(begin, len(seen.image))
        return self(seen) if room is None else self.score(seen.image.contiguous(), room)

    def _kept_room(self, begin: int, n_images: int) -> Room | None:
        """Return the cached features of some images; None if any of them are missing."""
        if self.kept is None or begin + n_images > len(self.kept.flat):
            return None
        return self.kept.part(begin, begin + n_images)

    def _room(self, n_images: int, *, keeps: bool = False) -> Room:
        """Return buffers for `n_images`; they are never freed, as a CUDA graph may use them."""
        # A power of two, so that many batch sizes share few buffers.
        key = (1 << (n_images - 1).bit_length(), keeps)
        if key not in self.rooms:
            self.rooms[key] = Room.of(self.layers, key[0], self.zero.device)
        return self.rooms[key].part(0, n_images)

    def _convolve(self, image: Float[Tensor, "batch row col"], room: Room) -> None:
        features: Features | Input = Input(image, room.mean, room.std)
        for layer, out in zip(self.layers, room.features, strict=True):
            layer(features, None, out, room.count)
            features = out
        arguments = [out.values, out.sums, out.n_tiles, room.flat, room.count]
        self.flatten((_N_FLATTEN_BLOCKS, len(image), 1), (256, 1, 1), arguments)

    def first_dense(self, kept: Room) -> Float[Tensor, "batch hidden"]:
        product = torch.mm(kept.flat, self.packed_dense.T, out_dtype=torch.float32)
        return product + self.dense.bias

    def weight_gradients(
        self, image: Float[Tensor, "batch row col"], kept: Room, gradient: Tensor
    ) -> list[Tensor]:
        largest = gradient.abs().amax().clamp(min=1e-30)
        scale = torch.exp2((_LARGEST / largest).log2().floor())
        small = (gradient * scale).half()
        dense = torch.mm(small.T, kept.flat, out_dtype=torch.float32)
        n_wide = self.layers[-1].n_out
        own = dense.unflatten(1, (-1, n_wide))[..., : n_wide // self.widening]
        weights = self._convolution_gradients(image, kept, small @ self.packed_dense)
        return [
            (own.transpose(1, 2) / scale).reshape(self.dense.weight.shape),
            *((weight / scale).contiguous() for weight in weights),
        ]

    def _convolution_gradients(
        self, image: Float[Tensor, "batch row col"], room: Room, gradient: Tensor
    ) -> list[Float[Tensor, "out in 3 3"]]:
        """Propagate a gradient of `room.flat`, scaled, to the convolutions' weights."""
        features = room.features
        steps = [self.first_backward.norm, *(layer.norm for layer in self.backwards)]
        norms = [step.norms(out) for step, out in zip(steps, features, strict=True)]
        flow, results = self.last_sums(features[-1], norms[-1], gradient), []
        for number in range(len(self.layers) - 1, 0, -1):
            before = Before(features[number - 1].read, norms[number - 1])
            weight, flow = self.backwards[number - 1](
                features[number], norms[number], flow, before, self.backward_weights[number]
            )
            results.append(weight)
        results.append(self.first_backward(image, features[0], norms[0], flow))
        own = (weight.shape for weight in self.weights)
        return [x[: size[0], : size[1]] for x, size in zip(results[::-1], own, strict=True)]


def _wide_places(
    weight: Float[Tensor, "out in 3 3"], n_out: int, n_in: int, begin: int
) -> Int[Tensor, " place"]:
    """Return the source of each weight of a wider convolution, counted from 1; 0 means none.

    The weights of the narrower one count from `begin`; all others are zero.
    """
    places = torch.zeros(n_out, n_in, 3, 3, dtype=torch.int64)
    own = torch.arange(begin, begin + weight.numel()).view(weight.shape)
    places[: len(weight), : weight.shape[1]] = own
    return torch.cat([places.new_zeros(1), places.reshape(-1)])
