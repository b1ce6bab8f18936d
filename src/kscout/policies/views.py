"""How a policy is run: while it learns it scores columns first, and gives gradients later.

This file knows which policies have kernels. A view may keep the features that it computed when
columns were chosen, so that the gradients need no second forward pass; the plain one keeps nothing
and works for every policy.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy
from kscout.kernels.registry import build
from kscout.policies.conv import ConvPolicy, policy_request
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.policies.conv_kept import KeptConvPolicy, Room
from kscout.policies.mixed_precision import MixedPrecision


@runtime_checkable
class View(Protocol):
    """A policy as an estimator runs it; its gradients go to the policy's parameters."""

    @property
    def chooser(self) -> Policy:
        """The policy in the arithmetic in which it chooses columns."""

    def refresh(self) -> None:
        """Take the policy's present weights, and forget what was kept."""

    def keep(self, n_states: int, n_bytes: int) -> int:
        """Reserve memory for the features of the states that are scored next.

        Args:
            n_states: how many will be scored.
            n_bytes: the most memory that may be reserved.

        Returns:
            For how many there is room: features of the first so many are kept.
        """

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Score columns; without gradients, features are kept where there is room for all."""

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Score states again, with gradients.

        Args:
            seen: the same observations.
            begin: how many states were scored before the first of these; all or none are kept.
        """


@final
class Recomputed:
    """The plain view: it keeps nothing, and looks at the images again.

    Args:
        policy: what learns.
        passes: the same policy in other arithmetic, where gradients shall be computed in it.
    """

    def __init__(self, policy: Policy, passes: Policy | None = None) -> None:
        self.policy, self.passes = policy, policy if passes is None else passes

    @property
    def chooser(self) -> Policy:
        return self.policy

    def refresh(self) -> None:
        """Do nothing: there is one set of weights."""

    def keep(self, n_states: int, n_bytes: int) -> int:
        """Reserve nothing."""
        return 0

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return self.passes(seen)

    def recall(self, seen: Observation, begin: int) -> Float[Tensor, "batch col"]:
        """Look at the images again."""
        return self.passes(seen)


def in_precision(policy: Policy, precision: str) -> Policy:
    """Return a policy that looks at 16-bit images through 16-bit kernels, as in its training.

    Args:
        policy: on the device where it will run.
        precision: that of the reconstructor whose images it will see.
    """
    if precision != "fp16" or not isinstance(policy, ConvPolicy):
        return policy
    makers = {"cuda": lambda: HalfPrecisionConvPolicy(policy), "torch": lambda: policy}
    view = build("policy", policy_request(policy), makers)
    # An estimator sets these on the policy that it trains, not on its class.
    view.is_stochastic, view.gain_units = policy.is_stochastic, policy.gain_units
    return view


def views_of(
    policies: Sequence[Policy], *, device: torch.device, precision: str, compiles: bool
) -> list[View]:
    """Return the fastest view of each policy.

    Args:
        policies: of one class and shape.
        device: where they learn.
        precision: `fp32`, or on CUDA anything else for 16-bit passes.
        compiles: whether torch.compile builds 16-bit passes that have no kernels.
    """
    room = Room()
    return [_view(policy, room, device, precision, compiles) for policy in policies]


def _view(policy: Policy, room: Room, device: torch.device, precision: str, compiles: bool) -> View:
    is_half = device.type == "cuda" and precision != "fp32"

    def plain() -> View:
        return Recomputed(policy, MixedPrecision(policy, compiles=compiles) if is_half else None)

    if not isinstance(policy, ConvPolicy) or (device.type == "cuda" and not is_half):
        return plain()
    makers: dict[str, Callable[[], View]] = {
        "cuda": lambda: HalfPrecisionConvPolicy(policy),
        "c": lambda: KeptConvPolicy(policy, room),
        "torch": plain,
    }
    return build("policy", policy_request(policy), makers)
