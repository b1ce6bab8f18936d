"""Run a policy over a whole data set, batch by batch, with draws that no batch size changes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch

from kscout.acquisition.episode import Simulator, check_budget
from kscout.acquisition.rollout import Trajectory, action_uniforms, rollout
from kscout.core import PROTOCOLS, Policy, Protocol, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError, unknown_name
from kscout.policies.conv_fused import HalfPrecisionConvPolicy, can_fuse_policy


@final
@dataclass(frozen=True)
class AcquisitionPlan:
    """How slices are acquired and scored."""

    n_initial: int
    """Central columns measured at the start."""
    horizon: int
    """Columns to acquire."""
    n_trajectories: int = 8
    """Acquisitions per slice of a policy that draws (paper: 8)."""
    seed: int = 0
    """Keys the draws; policies compared under one seed share them."""
    is_argmax: bool = False
    """Take the most probable column instead of drawing: one acquisition per slice."""
    protocol: Protocol = "paper"
    batch_size: int = 16
    """Slices at once; does not change results."""

    def __post_init__(self) -> None:
        for name in ("n_trajectories", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.protocol not in PROTOCOLS:
            raise unknown_name("protocol", self.protocol, list(PROTOCOLS))


@torch.no_grad()
def trajectories(
    policy: Policy,
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: AcquisitionPlan,
    *,
    keep_probabilities: bool = False,
    keep_images: bool = False,
) -> Iterator[tuple[SliceBatch, Trajectory]]:
    """Yield what a policy did to each batch of slices.

    All work is done on the device of `slices`. A deterministic policy runs once per slice,
    whatever `plan.n_trajectories` says.
    """
    check_fits(policy, slices, plan)
    device = slices.device
    reconstructor = reconstructor.to(device).eval()
    policy = in_precision_of(reconstructor, policy.to(device).eval())
    is_drawn = policy.is_stochastic and not plan.is_argmax
    # One draw for the whole split, looked up by position: batches and subsets change nothing.
    n_positions = int(slices.position.max()) + 1
    uniforms = (
        action_uniforms(n_positions, plan.n_trajectories, plan.horizon, plan.seed).to(device)
        if is_drawn
        else None
    )
    for batch in slices.batches(plan.batch_size):
        simulator = Simulator(batch, reconstructor, protocol=plan.protocol)
        yield (
            batch,
            rollout(
                policy,
                simulator,
                n_initial=plan.n_initial,
                horizon=plan.horizon,
                uniforms=None if uniforms is None else uniforms[batch.index],
                keep_probabilities=keep_probabilities,
                keep_images=keep_images,
            ),
        )


def in_precision_of(reconstructor: Reconstructor, policy: Policy) -> Policy:
    """Return a policy that looks at 16-bit images through 16-bit kernels, as in its training."""
    if reconstructor.precision == "fp16" and can_fuse_policy(policy):
        return HalfPrecisionConvPolicy(policy)
    return policy


def check_fits(policy: Policy, slices: SliceSet, plan: AcquisitionPlan) -> None:
    """Refuse, before any work is done, what could only fail later."""
    if not len(slices):
        raise DataError("no slice to acquire; the split, or what was chosen of it, is empty")
    check_budget(slices.selectable, n_initial=plan.n_initial, horizon=plan.horizon)
    n_cols = getattr(policy, "n_cols", None)
    if n_cols is not None and n_cols != slices.n_cols:
        raise ConfigError(
            f"{type(policy).__name__} was made for {n_cols} columns, the slices have "
            f"{slices.n_cols}; give a policy and a data set of one size"
        )
