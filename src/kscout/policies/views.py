"""Views of a policy in training: columns are scored first, and gradients computed later.

This file lists which policies have kernels. A view may cache the features of the choice of
columns, so that gradients need no second forward pass; the plain one caches nothing and supports
every policy.
"""

from collections.abc import Callable
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy
from kscout.kernels.registry import build
from kscout.policies.conv import ConvPolicy, policy_request
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.policies.conv_kept import KeptConvPolicy
from kscout.policies.mixed_precision import MixedPrecision


@runtime_checkable
class View(Protocol):
    """A policy in the form that an estimator runs; gradients go to the policy's parameters."""

    @property
    def chooser(self) -> Policy:
        """The policy in the arithmetic of the choice of columns."""

    def refresh(self) -> None:
        """Load the policy's present weights, and discard cached features."""

    def keep(self, n_states: int, n_bytes: int) -> int:
        """Reserve memory for the features of the states that are scored next.

        Args:
            n_states: number of states that will be scored.
            n_bytes: upper limit of the memory.

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


@final
class Recomputed:
    """The plain view, which runs the forward pass again.

    Args:
        policy: the trained policy.
        passes: the same policy in other arithmetic for gradients.
    """

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


def in_precision(policy: Policy, precision: str) -> Policy:
    """Return a policy that uses 16-bit kernels for 16-bit images, as in its training.

    Args:
        policy: on its device.
        precision: precision of the reconstructor of its images.
    """
    if precision != "fp16" or not isinstance(policy, ConvPolicy):
        return policy
    makers = {"cuda": lambda: HalfPrecisionConvPolicy(policy), "torch": lambda: policy}
    view = build("policy", policy_request(policy), makers)
    # An estimator sets these on the policy that it trains, not on its class.
    view.is_stochastic, view.gain_units = policy.is_stochastic, policy.gain_units
    return view


def view_of(policy: Policy, *, device: torch.device, precision: str, compiles: bool) -> View:
    """Return the fastest view of a policy.

    Args:
        policy: on its device.
        device: device of the training.
        precision: `fp32`, or on CUDA another value for 16-bit passes.
        compiles: whether torch.compile builds 16-bit passes that have no kernels.
    """
    is_half = device.type == "cuda" and precision != "fp32"

    def plain() -> View:
        return Recomputed(policy, MixedPrecision(policy, compiles=compiles) if is_half else None)

    if not isinstance(policy, ConvPolicy) or (device.type == "cuda" and not is_half):
        return plain()
    makers: dict[str, Callable[[], View]] = {
        "cuda": lambda: HalfPrecisionConvPolicy(policy),
        "c": lambda: KeptConvPolicy(policy),
        "torch": plain,
    }
    return build("policy", policy_request(policy), makers)
