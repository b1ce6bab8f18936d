"""Views of a policy in training: columns are scored first, and gradients computed later.

A view may cache the features of the choice of columns, so that gradients need no second forward
pass. A policy with kernels returns its own view (`HasView`); the plain one supports every policy.
"""

from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.core import Observation, Policy

_N_SIZES = 2
"""Compiled batch sizes: that of a batch, and that of replay steps."""


@runtime_checkable
class View(Protocol):
    """A policy in the form that an estimator runs; gradients go to the policy's parameters."""

    @property
    def chooser(self) -> Policy:
        """The policy in the arithmetic of the choice of columns."""

    def refresh(self) -> None:
        """Load the policy's present weights, and discard cached features."""

    def keep(self, n_states: int, n_bytes: int) -> int:
        """Reserve at most `n_bytes` for the features of the states that are scored next.

        Returns:
            Number of cached states: the first ones.
        """

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Score columns; without gradients, features are cached if there is memory for all."""

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Score states again, with gradients.

        Args:
            seen: the same observations.
            begin: number of states that were scored before; all of these states are cached or none.
        """


@runtime_checkable
class HasView(Protocol):
    """A policy with kernels for its training."""

    def view(self, precision: str) -> View | None:
        """Return a view on the policy's device; None if no kernel supports it there."""


@final
class Recomputed:
    """The plain view, which runs the forward pass again."""

    def __init__(self, policy: Policy, passes: Policy | None = None) -> None:
        self.policy, self.passes = policy, policy if passes is None else passes

    @property
    def chooser(self) -> Policy:
        return self.policy

    def refresh(self) -> None:
        """Do nothing, as there is one set of weights."""

    def keep(self, n_states: int, n_bytes: int) -> int:
        """Reserve nothing."""
        return 0

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return self.passes(seen)

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Run the forward pass with gradients."""
        return self.passes(seen)


@final
class MixedPrecision(Policy):
    """A view of a policy whose forward and backward passes run in bf16, channels last.

    Args:
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
        if torch.is_grad_enabled() and size not in self.sizes and len(self.sizes) < _N_SIZES:
            self.sizes.append(size)
        given = (seen.image, seen.mask, step, seen.zero_filled, seen.mean, seen.std, n_left)
        with torch.autocast("cuda", torch.bfloat16):
            if self.compiled is None or size not in self.sizes:
                return self._score(*given)
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


def in_precision(policy: Policy, precision: str) -> Policy:
    """Return a policy that uses 16-bit kernels for images of a precision, as in its training."""
    if precision != "fp16" or not isinstance(policy, HasView):
        return policy
    view = policy.view(precision)
    if view is None:
        return policy
    chooser = view.chooser
    # An estimator sets these on the policy that it trains, not on its class.
    chooser.is_stochastic, chooser.gain_units = policy.is_stochastic, policy.gain_units
    return chooser


def view_of(policy: Policy, *, device: torch.device, precision: str, compiles: bool) -> View:
    """Return the fastest view of a policy.

    On CUDA passes are in 16 bit unless the precision is `fp32`; torch.compile builds those that
    have no kernels if it `compiles`.
    """
    if isinstance(policy, HasView) and (view := policy.view(precision)) is not None:
        return view
    is_half = device.type == "cuda" and precision != "fp32"
    return Recomputed(policy, MixedPrecision(policy, compiles=compiles) if is_half else None)
