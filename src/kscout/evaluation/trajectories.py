"""Run a policy over a whole data set, batch by batch, with draws that no batch size changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from kscout.acquisition.budget import check_budget
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import Trajectory, action_uniforms, rollout
from kscout.core import Policy, Protocol, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.average_policy import AveragePolicy, sampled_by_step
from kscout.evaluation.contenders import Contender
from kscout.evaluation.examples import Example
from kscout.names import check_protocol
from kscout.physics.sampling import center_mask
from kscout.policies.views import in_precision


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
        check_protocol(self.protocol)


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
    policy = in_precision(policy.to(device).eval(), reconstructor.precision)
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


def average_policy(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: AcquisitionPlan
) -> AveragePolicy:
    """Run a policy over a data set and average what it measured (paper: one trajectory)."""
    columns, total, count = [], torch.zeros(plan.horizon, slices.n_cols, dtype=torch.float64), 0
    for _, done in trajectories(
        policy, slices, reconstructor, plan, keep_probabilities=policy.is_stochastic
    ):
        columns.append(done.columns.flatten(0, 1).cpu())
        if done.probabilities is not None:
            total += done.probabilities.double().sum(dim=(1, 2)).cpu()
            count += done.probabilities.shape[1] * done.probabilities.shape[2]
    start = center_mask(slices.n_cols, plan.n_initial)
    return AveragePolicy(
        sampled=sampled_by_step(torch.cat(columns).numpy(), start.numpy()),
        probabilities=(total / count).float().numpy() if count else None,
    )


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


def reconstruction_examples(
    contenders: Sequence[Contender],
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: AcquisitionPlan,
) -> list[Example]:
    """Run each policy once over the slices; examples come slice by slice, then by policy."""
    found: list[tuple[int, Example]] = []
    for contender in contenders:
        own = replace(plan, n_trajectories=1, seed=contender.draw_seed)
        place = 0
        for batch, done in trajectories(
            contender.policy, slices, reconstructor, own, keep_images=True
        ):
            assert done.images is not None
            for i in range(len(batch)):
                mask = center_mask(slices.n_cols, plan.n_initial)
                mask[done.columns[i, 0].cpu()] = True
                example = Example(
                    policy=contender.name,
                    seed=contender.seed,
                    volume=slices.volumes[place],
                    slice=slices.slices[place],
                    mask=mask.numpy(),
                    image=done.images[-1, i, 0].float().cpu().numpy(),
                    target=batch.target[i].float().cpu().numpy(),
                    ssim=done.ssim[i, 0, -1].item(),
                )
                found.append((place, example))
                place += 1
    return [example for _, example in sorted(found, key=lambda pair: pair[0])]
