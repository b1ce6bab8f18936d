"""The policy network's forward pass in 16 bit on CUDA, for choosing columns while it learns.

Convolutions go through the fused kernels, dense layers through 32 bit. Gradients come from the
network itself: this pass only chooses.
"""

from typing import TypeGuard, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.kernels import compile_kernel
from kscout.kernels.convolution import FILE, Convolution, Features, Input
from kscout.policies.conv import ConvPolicy

_N_FLATTEN_BLOCKS = 4


@final
class HalfPrecisionConvPolicy(Policy):
    """A view of a `ConvPolicy` on CUDA; call `refresh` when its weights have changed."""

    def __init__(self, policy: ConvPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.weights = _convolution_weights(policy)
        self.layers = []
        for number, weight in enumerate(self.weights):
            # The first layer does not pool, so the second reads at its size.
            level = max(0, number - 1)
            mode = "pool" if number > 1 else "same"
            shape = (policy.n_rows >> level, policy.n_cols >> level)
            self.layers.append(Convolution(weight, mode, *shape))
        last = self.layers[-1]
        self.flatten = compile_kernel(FILE, "flatten", *last.shape, last.n_out)
        self.room: dict[int, list[Features]] = {}

    def refresh(self) -> None:
        """Take the network's present weights."""
        for layer, weight in zip(self.layers, self.weights, strict=True):
            layer.set_weight(weight)

    @torch.no_grad()
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        image = seen.image.contiguous()
        n, device = len(image), image.device
        if n not in self.room:
            self.room[n] = [layer.allocate(n) for layer in self.layers]
        count = torch.full((), n, dtype=torch.int32, device=device)
        features: Features | Input = Input(
            image, torch.zeros(n, device=device), torch.ones(n, device=device)
        )
        for layer, out in zip(self.layers, self.room[n], strict=True):
            layer(features, None, out, count)
            features = out
        n_rows, n_cols = self.layers[-1].shape
        flat = torch.empty(n, self.layers[-1].n_out * (n_rows // 2) * (n_cols // 2), device=device)
        arguments = [out.values, out.sums, out.n_tiles, flat, count]
        self.flatten((_N_FLATTEN_BLOCKS, n, 1), (256, 1, 1), arguments)
        return self.policy.fc_out(flat)


def can_fuse_policy(policy: Policy) -> TypeGuard[ConvPolicy]:
    """Say whether the kernels exist for this network."""
    if not isinstance(policy, ConvPolicy):
        return False
    n_channels, n_blocks = policy.n_channels, policy.n_blocks
    sides = [side >> level for side in (policy.n_rows, policy.n_cols) for level in range(n_blocks)]
    return (
        n_blocks >= 1
        and n_channels % 16 == 0
        and n_channels & (n_channels - 1) == 0
        and policy.n_rows % 2**n_blocks == policy.n_cols % 2**n_blocks == 0
        and all(side >= 8 and (side % 32 == 0 or 32 % side == 0) for side in sides)
    )


def _convolution_weights(policy: ConvPolicy) -> list[Tensor]:
    return [layer.weight for layer in policy.modules() if isinstance(layer, nn.Conv2d)]
