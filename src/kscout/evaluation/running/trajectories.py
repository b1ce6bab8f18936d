"""Acquisitions of a dataset by a policy, batch by batch; the batch size has no effect on them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.choose import draws_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Trajectory, action_uniforms, rollout
from kscout.acquisition.plan import Plan
from kscout.columns import parse_columns
from kscout.compatibility import check_matrix, check_real
from kscout.core import Measurement, Policy, Reconstructor, SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import DataError
from kscout.evaluation.request import EvaluationSetting
from kscout.physics.coils import n_central
from kscout.policies.views import in_precision


def n_at_once(plan: Plan, slices: SliceSet) -> int:
    """Return the number of slices per batch."""
    if plan.batch_size is not None:
        return plan.batch_size
    n_pixels = math.prod(slices.shape) * plan.n_trajectories
    return max(16, 2**25 // n_pixels) if slices.device.type == "cuda" else 16


def plan_of(setting: EvaluationSetting) -> Plan:
    """Return the plan of an evaluation."""
    return Plan(
        setting.n_initial or 0 if setting.initial is None else parse_columns(setting.initial),
        setting.steps or 0,
        columns_per_step=setting.columns_per_step,
        n_trajectories=setting.trajectories,
        seed=setting.seeds[0],
        is_argmax=setting.argmax,
        protocol=setting.protocol,
        batch_size=setting.batch_size,
    )


def ready_batches(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: Plan
) -> Iterator[tuple[Policy, Simulator, Plan, Float[Tensor, "batch trajectory column"] | None]]:
    """Yield, for each batch: policy, simulator, plan, and random numbers if columns are sampled."""
    check_fits(policy, slices, plan)
    device = slices.device
    reconstructor = reconstructor.to(device).eval()
    is_drawn = draws_columns(policy, is_argmax=plan.is_argmax)
    plan = replace(plan, is_argmax=not is_drawn)
    policy = in_precision(policy.to(device).eval(), reconstructor.precision)
    # Numbers for the whole split, indexed by position: batches and subsets do not change them.
    n_positions = int(slices.position.max()) + 1
    uniforms = (
        action_uniforms(n_positions, plan.n_trajectories, plan.horizon, plan.seed).to(device)
        if is_drawn
        else None
    )
    for batch in slices.batches(n_at_once(plan, slices)):
        drawn = None if uniforms is None else uniforms[batch.index]
        yield policy, plan.simulator(batch, reconstructor), plan, drawn


@torch.no_grad()
def trajectories(
    policy: Policy,
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: Plan,
    *,
    keep_probabilities: bool = False,
    keep_images: bool = False,
) -> Iterator[tuple[SliceBatch, Trajectory]]:
    """Yield the acquisitions of a policy, batch by batch; a deterministic one runs once."""
    for ready, simulator, own, uniforms in ready_batches(policy, slices, reconstructor, plan):
        done = rollout(
            *(ready, simulator, own),
            uniforms=uniforms,
            keep_probabilities=keep_probabilities,
            keep_images=keep_images,
        )
        yield simulator.batch, done


@torch.no_grad()
def check_start(
    slices: SliceSet, reconstructor: Reconstructor, start: Bool[Tensor, "slice col"]
) -> None:
    """Raise an error for a start with too few central columns for a reconstruction."""
    if not len(slices):
        return
    poorest = n_central(start).argmin()[None]
    batch = slices.batch(poorest.to(slices.index_device))
    reconstructor.calibrate(Measurement.of(batch.kspace, start[poorest]))


def check_fits(policy: Policy, slices: SliceSet, plan: Plan, *, name: str | None = None) -> None:
    """Raise an error for a policy that cannot run on slices, before it runs."""
    if not len(slices):
        raise DataError("no slice to acquire; the split, or the selection, is empty")
    plan.check(slices.selectable)
    slices.check_start(plan.start)
    kind = None if slices.kind == IMAGES.name else f"the slices are {slices.kind}"
    check_real(policy, kind, name=name)
    check_matrix(policy, slices.shape, name=name)


def choose_slices(slices: SliceSet, names: Sequence[str]) -> SliceSet:
    """Return slices by position (`12`) or as `VOLUME:NUMBER`, in the order of the names."""
    by_name = {pair: i for i, pair in enumerate(zip(slices.volumes, slices.slices, strict=True))}
    positions = []
    for name in names:
        volume, colon, number = name.rpartition(":")
        try:
            position = by_name[volume, int(number)] if colon else int(name)
            if not 0 <= position < len(slices):
                raise IndexError
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(
                f"no slice {name!r}; give a position 0..{len(slices) - 1} or VOLUME:NUMBER, "
                f"e.g. {slices.volumes[0]}:{slices.slices[0]}"
            ) from error
        positions.append(position)
    return slices.subset(torch.tensor(positions, dtype=torch.long))
