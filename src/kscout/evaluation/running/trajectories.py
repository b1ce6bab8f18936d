"""Run a policy over a whole data set, batch by batch, with draws that no batch size changes."""

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
    """How slices are acquired and scored."""

    n_initial: int = 0
    """Central columns measured at the start; with `initial`, as many as its shortest start has."""
    horizon: int = 0
    """Columns to acquire; with `horizons`, the most."""
    n_trajectories: int = 8
    """Acquisitions per slice of a policy that draws (paper: 8)."""
    seed: int = 0
    """Keys the draws; policies compared under one seed share them."""
    is_argmax: bool = False
    """Take the most probable column instead of drawing: one acquisition per slice. A policy without
    weights, such as `random`, draws nevertheless."""
    protocol: Protocol | None = None
    """How images are un-normalized before they are scored; None: as the reconstruction was trained,
    `blind` if it was not."""
    batch_size: int | None = None
    """Slices per batch; results do not depend on it. (default: chosen for the device)"""
    initial: Starts = ()
    """Columns measured at the start in place of central ones: one entry for all, or one per slice.
    """
    horizons: tuple[int, ...] = ()
    """Columns to acquire in each slice; empty where all acquire `horizon`."""
    columns_per_step: int = 1
    """Columns chosen before each reconstruction; the last step takes what is left."""
    stop_below: float | None = None
    """A slice ends where its policy predicts less gain in SSIM than this of every column."""

    def __post_init__(self) -> None:
        check_pace(self.columns_per_step, self.stop_below)
        for name in ("n_trajectories", "batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name} is {count}; it must be 1 or more")
        if self.protocol is not None:
            check_protocol(self.protocol)

    def n_at_once(self, slices: SliceSet) -> int:
        """Return how many of these slices are acquired at once."""
        if self.batch_size is not None:
            return self.batch_size
        n_pixels = math.prod(slices.shape) * self.n_trajectories
        return max(16, 2**25 // n_pixels) if slices.device.type == "cuda" else 16

    @property
    def is_uneven(self) -> bool:
        """Whether slices may end with different numbers of columns."""
        return bool(self.horizons) or self.stop_below is not None

    def start(self, slices: SliceSet) -> Initial:
        """Return where the acquisitions of these slices start, on their device."""
        if len(self.initial) < 2:
            return self.initial[0] if self.initial else self.n_initial
        masks = [start_mask(one, (1, slices.n_cols)) for one in self.initial]
        return torch.cat(masks).to(slices.device)

    def columns(self, slices: SliceSet) -> int | Int[Tensor, " slice"]:
        """Return how many columns are acquired, one number or one per slice."""
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
    """Yield what a policy did to each batch of slices.

    All work is done on the device of `slices`. A deterministic policy runs once per slice,
    whatever `plan.n_trajectories` says.
    """
    check_fits(policy, slices, plan)
    device = slices.device
    reconstructor = reconstructor.to(device).eval()
    is_drawn = draws_columns(policy, is_argmax=plan.is_argmax)
    policy = in_precision(policy.to(device).eval(), reconstructor.precision)
    # One draw for the whole split, looked up by position: batches and subsets change nothing.
    n_positions = int(slices.position.max()) + 1
    uniforms = (
        action_uniforms(n_positions, plan.n_trajectories, plan.horizon, plan.seed).to(device)
        if is_drawn
        else None
    )
    start, columns, done = plan.start(slices), plan.columns(slices), 0
    for batch in slices.batches(plan.n_at_once(slices)):
        simulator = Simulator(batch, reconstructor, protocol=plan.protocol)
        rows = slice(done, done + len(batch))
        done = rows.stop
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
    """Let a reconstructor refuse a start that has too few central columns for it."""
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
    """Refuse, before any work is done, what could only fail later.

    Args:
        policy: the policy.
        slices: to be acquired.
        plan: how slices are acquired.
        name: of the policy in messages; by default that of its class.
        network: the reconstruction, if it is known.
    """
    if not len(slices):
        raise DataError("no slice to acquire; the split, or what was chosen of it, is empty")
    check_budget(slices.selectable, n_initial=plan.start(slices), horizon=plan.columns(slices))
    slices.check_start(plan.start(slices))
    check_promises(policy, plan.stop_below)
    kind = None if slices.kind == IMAGES.name else f"the slices are {slices.kind}"
    check_real(policy, kind, name=name)
    check_matrix(policy, slices.shape, name=name, network=network)


def choose_slices(slices: SliceSet, wanted: Sequence[str]) -> SliceSet:
    """Return slices named by position (`12`) or as `VOLUME:NUMBER`, in the order asked for."""
    found = []
    places = {pair: i for i, pair in enumerate(zip(slices.volumes, slices.slices, strict=True))}
    for name in wanted:
        volume, colon, number = name.rpartition(":")
        try:
            place = places[volume, int(number)] if colon else int(name)
            if not 0 <= place < len(slices):
                raise IndexError
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(
                f"no slice {name!r}; give a position 0..{len(slices) - 1} or VOLUME:NUMBER, "
                f"e.g. {slices.volumes[0]}:{slices.slices[0]}"
            ) from error
        found.append(place)
    return slices.subset(torch.tensor(found, dtype=torch.long))
