"""The paper's U-Net for a CPU with frozen weights: the same function in fewer passes over memory.

At 16 channels the convolutions are a small part of the cost of torch's modules on a CPU. Here

- the first convolution, of one channel, is a matrix product of shifted images;
- instance norm is a group norm of one channel per group, and biases of convolutions, which it
  removes, are omitted;
- pooling takes the maximum of strided views, and ReLU works in place;
- the three 1x1 convolutions at the end, without activations between them, are one product.

The layout of the weights, channels first or last, determines the layout of the features, so that
`to_layout` selects both. If compiled kernels are available, the network is one call of
`kernels/convolution_cpu.c`, with a quarter of the multiplications. Outputs differ only by rounding.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.kernels.convolution_cpu import run_unet, transform_weights
from kscout.kernels.registry import Request, serving
from kscout.layers import UNetNetwork, check_size, combined_weight, convolution_weights

_N_PIXELS_AT_ONCE = 2**16
"""Pixels of the images per pass, so that features stay in the caches."""

_N_PIXELS_OF_FAST_GROUP_NORM = 1024
"""Smallest feature map for channels last, as torch's group norm is slow on smaller ones."""

_EPSILON = 1e-5
"""The epsilon of instance norm."""


@final
class InferenceUNet(nn.Module):
    """A copy of a trained `UNetNetwork` that maps images faster and cannot be trained."""

    first: Tensor
    packed: Tensor
    last: Tensor
    last_bias: Tensor

    def __init__(self, network: UNetNetwork) -> None:
        super().__init__()
        blocks = [*network.down_sample_layers, network.conv, *network.up_sample_layers]
        weights = [weight for block in blocks for weight in convolution_weights(block)]
        self.n_pools = len(network.down_sample_layers)
        self.n_channels = len(weights[0])
        self.register_buffer("first", weights[0].flatten(start_dim=1).clone())
        for number, weight in enumerate(weights[1:], start=1):
            # Channels last suits oneDNN, which needs no conversion of the features.
            stored = weight.clone(memory_format=torch.channels_last)
            self.register_buffer(f"weight_{number}", stored)
        last = combined_weight(network.conv2)
        self.register_buffer("last", last[:-1])
        self.register_buffer("last_bias", last[-1])
        # In double precision, rounded once after the transform.
        compiled = [transform_weights(weight.double()).float() for weight in weights[1:]]
        parts = [self.first.T, *compiled, last]
        self.register_buffer("packed", torch.cat([part.flatten() for part in parts]))

    def forward(self, image: Float[Tensor, "batch 1 row col"]) -> Float[Tensor, "batch 1 row col"]:
        check_size(image.shape[-2], image.shape[-1], self.n_pools)
        n_at_once = max(1, _N_PIXELS_AT_ONCE // image[0].numel())
        kind = frozenset({image.dtype})
        with torch.no_grad():
            if serving("unet", Request(image.device, kind, n_channels=self.n_channels)) != "c":
                return torch.cat([self._part(part) for part in image.split(n_at_once)])
            shape = {"n_channels": self.n_channels, "n_pools": self.n_pools}
            return run_unet(image[:, 0], self.packed, n_at_once=n_at_once, **shape)[:, None]

    def _part(self, image: Float[Tensor, "batch 1 row col"]) -> Float[Tensor, "batch 1 row col"]:
        features, skips = self._convolve(1, self._first(image)), []
        for level in range(self.n_pools):
            if level:
                features = self._convolve(2 * level + 1, self._convolve(2 * level, features))
            skips.append(features)
            features = _halve(features)
        number = 2 * self.n_pools
        features = self._convolve(number + 1, self._convolve(number, features))
        while skips:
            number += 2
            skip = skips.pop()
            features = F.interpolate(
                features, size=skip.shape[-2:], mode="bilinear", align_corners=False
            )
            features = self._convolve(number, torch.cat([features, skip], dim=1))
            features = self._convolve(number + 1, features)
        return self._last(features)

    def _convolve(
        self, number: int, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch out_channel row col"]:
        weight = self.get_buffer(f"weight_{number}")
        return _normalize(F.conv2d(features, weight, padding=1))

    def _first(
        self, image: Float[Tensor, "batch 1 row col"]
    ) -> Float[Tensor, "batch channel row col"]:
        """Convolve one channel by a matrix product, since oneDNN has no fast kernel for it."""
        n_images, _, n_rows, n_cols = image.shape
        padded = F.pad(image[:, 0], (1, 1, 1, 1))
        shifted = [
            padded[:, row : row + n_rows, col : col + n_cols]
            for row in range(3)
            for col in range(3)
        ]
        if self._channels_last():
            patches = torch.stack(shifted, dim=-1).flatten(1, 2)
            features = (patches @ self.first.T).view(n_images, n_rows, n_cols, -1)
            return _normalize(features.permute(0, 3, 1, 2))
        patches = torch.stack(shifted, dim=1).flatten(2)
        return _normalize((self.first @ patches).view(n_images, -1, n_rows, n_cols))

    def _last(
        self, features: Float[Tensor, "batch channel row col"]
    ) -> Float[Tensor, "batch 1 row col"]:
        n_images, _, n_rows, n_cols = features.shape
        if self._channels_last():
            flat = features.permute(0, 2, 3, 1) @ self.last
        else:
            flat = self.last @ features.flatten(2)
        return (flat + self.last_bias).view(n_images, 1, n_rows, n_cols)

    def _channels_last(self) -> bool:
        weight = self.get_buffer("weight_1")
        return not weight.is_contiguous()


def _normalize(
    features: Float[Tensor, "batch channel row col"],
) -> Float[Tensor, "batch channel row col"]:
    n_images, n_channels, n_rows, n_cols = features.shape
    if features.is_contiguous() or n_rows * n_cols >= _N_PIXELS_OF_FAST_GROUP_NORM:
        return F.group_norm(features, n_channels, eps=_EPSILON).relu_()
    flat = features.permute(0, 2, 3, 1).flatten(1, 2)
    centered = flat - flat.mean(dim=1, keepdim=True)
    variance = centered.square().mean(dim=1, keepdim=True)
    scaled = centered.mul_((variance + _EPSILON).rsqrt_()).relu_()
    return scaled.view(n_images, n_rows, n_cols, n_channels).permute(0, 3, 1, 2)


def _halve(
    features: Float[Tensor, "batch channel row col"],
) -> Float[Tensor, "batch channel half_row half_col"]:
    """Take the maximum of 2x2 pixels; a last odd line is dropped, as by `max_pool2d`."""
    n_rows, n_cols = (size // 2 * 2 for size in features.shape[-2:])
    even, odd = features[..., 0:n_rows:2, :], features[..., 1:n_rows:2, :]
    rows = torch.maximum(even, odd)
    return torch.maximum(rows[..., 0:n_cols:2], rows[..., 1:n_cols:2])
