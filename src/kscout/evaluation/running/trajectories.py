"""Acquisitions of a dataset by a policy, batch by batch; the batch size has no effect on them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from kscout.acquisition.budget import check_budget
from kscout.acquisition.choose import draws_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.pace import check_pace, check_promises
from kscout.acquisition.rollout import Trajectory, action_uniforms, rollout
from kscout.acquisition.starts import Starts, for_slices, read_budgets, read_starts
from kscout.compatibility import check_matrix, check_real
from kscout.core import Measurement, Policy, Protocol, Reconstructor, SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.request import EvaluationSetting
from kscout.names import check_protocol
from kscout.physics.coils import n_central
from kscout.physics.sampling import Initial, start_mask
from kscout.policies.views import in_precision


@final
@dataclass(frozen=True)
class AcquisitionPlan:
    """How slices are acquired and scored: the setting of an evaluation for given slices."""

    n_initial: int = 0
    """Central columns measured at the start; with `initial`, the length of its shortest start."""
    horizon: int = 0
    """Columns to acquire; with `horizons`, their maximum."""
    n_trajectories: int = 8
    """Acquisitions per slice of a stochastic policy (paper: 8)."""
    seed: int = 0
    """Random seed for sampling; compared policies use the same one."""
    is_argmax: bool = False
    """Acquire the column with the highest score instead of sampling: one acquisition per slice. A
    policy without weights, such as `random`, samples in any case."""
    protocol: Protocol | None = None
    """How images are un-normalized before they are scored; None: as the reconstruction was trained,
    else `blind`."""
    batch_size: int | None = None
    """Slices per batch; results do not depend on it. (default: chosen for the device)"""
    initial: Starts = ()
    """Columns measured at the start instead of central ones: one entry, or one per slice."""
    horizons: tuple[int, ...] = ()
    """Columns to acquire in each slice; empty if all acquire `horizon`."""
    columns_per_step: int = 1
    """Columns selected before each reconstruction; the last step may have fewer."""
    stop_below: float | None = None
    """A slice ends when its policy predicts a smaller gain in SSIM for every column."""

    def __post_init__(self) -> None:
        check_pace(self.columns_per_step, self.stop_below)
        for name in ("n_trajectories", "batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name} is {count}; it must be 1 or more")
        if self.protocol is not None:
            check_protocol(self.protocol)

    def n_at_once(self, slices: SliceSet) -> int:
        """Return the number of slices per batch."""
        if self.batch_size is not None:
            return self.batch_size
        n_pixels = math.prod(slices.shape) * self.n_trajectories
        return max(16, 2**25 // n_pixels) if slices.device.type == "cuda" else 16

    @property
    def is_uneven(self) -> bool:
        """Whether slices may have different numbers of columns at the end."""
        return bool(self.horizons) or self.stop_below is not None

    def start(self, slices: SliceSet) -> Initial:
        """Return the start of these slices, on their device."""
        if len(self.initial) < 2:
            return self.initial[0] if self.initial else self.n_initial
        masks = [start_mask(start, (1, slices.n_cols)) for start in self.initial]
        return torch.cat(masks).to(slices.device)

    def columns(self, slices: SliceSet) -> int | Int[Tensor, " slice"]:
        """Return the number of columns to acquire: one number, or one per slice."""
        return torch.tensor(self.horizons, device=slices.device) if self.horizons else self.horizon


def plan_of(setting: EvaluationSetting, slices: SliceSet, *, n_whole: int) -> AcquisitionPlan:
    """Return the plan for slices; `n_whole` is the size of their split."""
    plan = AcquisitionPlan(
        n_initial=setting.n_initial or 0,
        horizon=setting.steps or 0,
        n_trajectories=setting.trajectories,
        seed=setting.seeds[0],
        is_argmax=setting.argmax,
        protocol=setting.protocol,
        batch_size=setting.batch_size,
        columns_per_step=setting.columns_per_step,
        stop_below=setting.stop_below,
    )
    positions = slices.position.tolist()
    n_whole = max(n_whole, max(positions, default=-1) + 1)
    if setting.initial is not None:
        starts = read_starts(setting.initial, n_cols=slices.n_cols)
        if len(starts) > 1:
            starts = tuple(for_slices(starts, positions, n_whole, "starts"))
        plan = replace(plan, initial=starts, n_initial=min(len(start) for start in starts))
    if setting.budget is None:
        return plan
    budgets = for_slices(read_budgets(setting.budget), positions, n_whole, "budgets")
    n_starts = [len(start) for start in plan.initial] or [plan.n_initial]
    horizons = [m - n for m, n in zip(budgets, itertools.cycle(n_starts), strict=False)]
    if max(budgets) > slices.n_cols:
        raise ConfigError(
            f"a budget of {max(budgets)} columns is more than the {slices.n_cols} of the images; "
            "give less"
        )
    if min(horizons) < 0 or not any(horizons):
        raise ConfigError(
            f"a budget of {min(budgets)} columns leaves none to acquire after a start of "
            f"{max(n_starts)}; the budget counts the start, so give more"
        )
    is_even = len(set(horizons)) == 1
    return replace(plan, horizon=max(horizons), horizons=() if is_even else tuple(horizons))


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
    """Yield the acquisitions of a policy, batch by batch, on the device of the slices.

    A deterministic policy runs once per slice.
    """
    check_fits(policy, slices, plan)
    device = slices.device
    reconstructor = reconstructor.to(device).eval()
    is_drawn = draws_columns(policy, is_argmax=plan.is_argmax)
    policy = in_precision(policy.to(device).eval(), reconstructor.precision)
    # Numbers for the whole split, indexed by position: batches and subsets do not change them.
    n_positions = int(slices.position.max()) + 1
    uniforms = (
        action_uniforms(n_positions, plan.n_trajectories, plan.horizon, plan.seed).to(device)
        if is_drawn
        else None
    )
    start, columns, n_done = plan.start(slices), plan.columns(slices), 0
    for batch in slices.batches(plan.n_at_once(slices)):
        simulator = Simulator(batch, reconstructor, protocol=plan.protocol)
        rows = slice(n_done, n_done + len(batch))
        n_done = rows.stop
        yield (
            batch,
            rollout(
                policy,
                simulator,
                n_initial=start[rows] if isinstance(start, Tensor) else start,
                horizon=columns[rows] if isinstance(columns, Tensor) else columns,
                columns_per_step=plan.columns_per_step,
                stop_below=plan.stop_below,
                most=plan.horizon if plan.horizons else None,
                uniforms=None if uniforms is None else uniforms[batch.index],
                is_argmax=not is_drawn,
                keep_probabilities=keep_probabilities,
                keep_images=keep_images,
            ),
        )


@torch.no_grad()
def check_start(slices: SliceSet, reconstructor: Reconstructor, initial: Initial) -> None:
    """Raise an error for a start with too few central columns for a reconstruction."""
    if not len(slices):
        return
    start = start_mask(initial, slices.selectable.shape, slices.device)
    poorest = n_central(start).argmin()[None]
    batch = slices.batch(poorest.to(slices.index_device))
    reconstructor.calibrate(Measurement.of(batch.kspace, start[poorest]))


def check_fits(
    policy: Policy,
    slices: SliceSet,
    plan: AcquisitionPlan,
    *,
    name: str | None = None,
    network: Reconstructor | None = None,
) -> None:
    """Raise an error for a policy that cannot run on slices, before it runs.

    Args:
        policy: the policy.
        slices: slices to acquire.
        plan: how slices are acquired.
        name: name in messages; by default that of the class.
        network: the reconstruction, if known.
    """
    if not len(slices):
        raise DataError("no slice to acquire; the split, or the selection, is empty")
    check_budget(slices.selectable, n_initial=plan.start(slices), horizon=plan.columns(slices))
    slices.check_start(plan.start(slices))
    check_promises(policy, plan.stop_below)
    kind = None if slices.kind == IMAGES.name else f"the slices are {slices.kind}"
    check_real(policy, kind, name=name)
    check_matrix(policy, slices.shape, name=name, network=network)


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
