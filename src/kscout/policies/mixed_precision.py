"""Policy gradients in bf16 on CUDA: weights, sums and the softmax stay in 32 bit."""

from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.core import Observation, Policy

_N_SIZES = 2
"""Compiled batch sizes per matrix size: that of a batch, and that of replay steps."""


@final
class MixedPrecision(Policy):
    """A view of a policy whose forward and backward passes run in bf16, channels last.

    Args:
        policy: the policy; its parameters get the gradients.
        compiles: whether torch.compile builds the passes for the first batch sizes with gradients;
            other sizes, such as an epoch's last batch, run uncompiled.
    """

    def __init__(self, policy: Policy, *, compiles: bool) -> None:
        super().__init__()
        # The stubs of torch lack memory formats.
        self.policy = policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compiled = torch.compile(self._score, dynamic=False) if compiles else None
        self.sizes: list[torch.Size] = []

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        size = seen.image.shape
        # Counts are tensors, because a number would be compiled as a constant.
        step = seen.for_each(seen.step)
        n_left = None if seen.n_left is None else seen.for_each(seen.n_left)
        n_alike = sum(one[1:] == size[1:] for one in self.sizes)
        if torch.is_grad_enabled() and size not in self.sizes and n_alike < _N_SIZES:
            self.sizes.append(size)
        given = (seen.image, seen.mask, step, seen.zero_filled, seen.mean, seen.std, n_left)
        with torch.autocast("cuda", torch.bfloat16):
            if self.compiled is None or size not in self.sizes:
                return self._score(*given)
            # The limit of torch.compile for one function is too small for many matrices.
            least = torch._dynamo.config.recompile_limit
            with torch._dynamo.config.patch(recompile_limit=max(least, 2 * len(self.sizes))):
                return self.compiled(*given)

    def _score(
        self,
        image: Float[Tensor, "batch row col"],
        mask: Bool[Tensor, "batch col"],
        step: Int[Tensor, " batch"],
        zero_filled: Complex[Tensor, "batch coil row col"] | None,
        mean: Float[Tensor, " batch"] | None,
        std: Float[Tensor, " batch"] | None,
        n_left: Int[Tensor, " batch"] | None,
    ) -> Float[Tensor, "batch col"]:
        return self.policy(Observation(image, mask, step, zero_filled, mean, std, n_left=n_left))
