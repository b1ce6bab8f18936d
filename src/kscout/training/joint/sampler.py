"""Samplers, which choose the columns of a reconstruction in training: their interface, and all."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kscout.acquisition.choose import check_chosen, choose_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import training_plan
from kscout.config import (
    DenseSampling,
    DenseTraining,
    FixedSampling,
    JointConfig,
    JointTraining,
    PolicyConfig,
    RandomSampling,
    warmed_rate,
)
from kscout.core import Observation, Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, RunError
from kscout.json_types import StateDict
from kscout.physics.sampling import start_mask
from kscout.policies.fixed import FixedOrder
from kscout.policies.random import Random
from kscout.training.algorithm import Learner, optimizer_step
from kscout.training.algorithms.dense import Dense
from kscout.training.algorithms.gradient import EpochDraws
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.policy import new_policy

_N_BATCHES_KEPT = 8
"""Newest batches in the replay buffer: gains of older ones are of an older network."""
_N_FITTED_AT_ONCE = {"cpu": 16, "cuda": 64}
"""Slices on which columns are tried together, by kind of device; does not change results."""


@final
class Pair(nn.Module):
    """A reconstruction and the policy that chooses its columns."""

    def __init__(self, reconstructor: Reconstructor, policy: Policy) -> None:
        super().__init__()
        self.reconstructor, self.policy = reconstructor, policy


@final
@dataclass(frozen=True)
class Material:
    """The input of a sampler."""

    config: JointConfig
    slices: SliceSet
    """The training slices."""
    view: Reconstructor
    """The reconstruction at its last update, frozen, in fast arithmetic."""
    snapshot: Reconstructor
    """The same in plain arithmetic, differentiable with respect to the measurement."""
    optimizer: torch.optim.Optimizer
    """The optimizer of the pair; a step changes only parameters with a gradient."""


class Sampler(ABC):
    """Chooses columns by a policy, which it may train together with the reconstruction.

    A new one sets `settings` and overrides what it does: `renew` at the beginning and once an
    epoch, `update` after every few updates of the reconstruction. Neither is called before the
    first `random_share` of the updates is done.

    Args:
        policy: the policy that chooses columns, on its device.
        material: settings, slices, reconstruction and optimizer.
    """

    settings: ClassVar[type[JointTraining]] = JointTraining
    looks: ClassVar[bool] = True
    """Whether choices depend on the slice; otherwise no image is reconstructed."""

    def __init__(self, policy: Policy, material: Material) -> None:
        self.learner, self.material = policy, material
        self.training: JointTraining = material.config.training

    @property
    def policy(self) -> Policy:
        """The policy that acquires, is validated and is saved."""
        return self.learner

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        """Build the initial policy of a training."""
        return new_policy(config, slices)

    @classmethod
    def n_bytes(cls, config: JointConfig, slices: SliceSet, n_image: int) -> int:
        """Return the least memory of the sampler, without slices and networks.

        `n_image` is the number of bytes that one more image takes in the reconstruction.
        """
        return 0

    @abstractmethod
    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Renew the sampler, once per epoch.

        Args:
            epoch: counted from 1.
            is_first: whether this is the first call.
        """

    def is_due(self, number: int) -> bool:
        """Return whether `update` follows an update of the reconstruction, counted from 0."""
        return False

    def update(self, number: int) -> Float[Tensor, ""]:
        """Train on some slices; return their mean score."""
        raise RunError(
            f"{type(self).__name__} says that it is due to learn and does not say how; give it "
            "`update`, or leave `is_due` as it is"
        )

    def state(self) -> StateDict:
        """Return the content of a checkpoint besides weights and optimizer."""
        return {}

    def restore(self, state: StateDict) -> None:
        """Restore the content of `state` after at least one `renew`."""
        if state:
            raise RunError(
                f"the checkpoint holds {', '.join(map(str, state))} of {type(self).__name__}, "
                "which has no `restore`; give it one, or delete checkpoint.pt to train from the "
                "start"
            )


@torch.no_grad()
def acquire(
    policy: Policy,
    batch: SliceBatch,
    config: JointConfig,
    uniforms: Float[Tensor, "slice step"],
    view: Reconstructor | None,
) -> Bool[Tensor, "slice moment col"]:
    """Acquire slices by a policy; return the masks of all steps, the start first."""
    setting = config.acquisition
    device = batch.kspace.device
    start = start_mask(setting.start, batch.selectable.shape, device)
    if view is None:
        columns = _blindly(policy, start, batch.selectable, uniforms)
    else:
        simulator = Simulator(batch, view, protocol=config.training.protocol)
        acquisition = Acquisition(simulator, training_plan(config))
        columns = _looking(policy.bind(simulator.context), acquisition, uniforms)
    masks = moments_of(start, columns)
    n_measured = masks.sum(dim=-1)
    is_wrong = n_measured[:, -1] != n_measured[:, 0] + setting.horizon
    check_chosen(is_wrong.any(), "the sampler")
    return masks


def _looking(
    policy: Policy, acquisition: Acquisition, uniforms: Float[Tensor, "slice step"]
) -> Int[Tensor, "slice step"]:
    columns = []
    # The last image is not needed, so it is not reconstructed.
    while acquisition.n_next:
        scores, draws = acquisition.scores(policy).float(), uniforms[:, acquisition.n_acquired]
        columns.append(choose_columns(policy, scores, acquisition.blocked, draws)[:, None])
        acquisition.measure(columns[-1])
    return torch.cat(columns, dim=1)


def _blindly(
    policy: Policy,
    start: Bool[Tensor, "slice col"],
    selectable: Bool[Tensor, "slice col"],
    uniforms: Float[Tensor, "slice step"],
) -> Int[Tensor, "slice step"]:
    mask, columns = start, []
    for step in range(uniforms.shape[1]):
        seen = without_image(mask, step)
        column = choose_columns(policy, policy(seen), mask | ~selectable, uniforms[:, step])
        mask = mask.scatter(-1, column[:, None], True)
        columns.append(column)
    return torch.stack(columns, dim=1)


def without_image(mask: Bool[Tensor, "slice col"], step: int) -> Observation:
    """Return the observation of a policy that uses no image."""
    image = torch.zeros(len(mask), 1, mask.shape[1], device=mask.device)
    return Observation(image=image, mask=mask, step=step)


def moments_of(
    start: Bool[Tensor, "slice col"], columns: Int[Tensor, "slice step"]
) -> Bool[Tensor, "slice moment col"]:
    """Return the masks before and after each column."""
    taken = nn.functional.one_hot(columns, start.shape[1]).cumsum(dim=1).bool()
    return torch.cat([start[:, None], start[:, None] | taken], dim=1)


@final
class DenseGains(Sampler):
    """Trains a policy by the estimator `dense`, after updates of the reconstruction."""

    settings = DenseSampling
    training: DenseSampling

    def __init__(self, policy: Policy, material: Material) -> None:
        super().__init__(policy, material)
        self.config = policy_config(material.config)
        learner = Learner(policy, self.config, material.optimizer)
        self.estimator = Dense(learner, material.slices, material.view)
        self.drawn: tuple[int, EpochDraws] | None = None

    @classmethod
    def n_bytes(cls, config: JointConfig, slices: SliceSet, n_image: int) -> int:
        """Return the memory of the random numbers of a pass over the slices."""
        horizon, n_pixels = config.acquisition.horizon, math.prod(slices.shape)
        return policy_config(config).training.n_bytes(len(slices), horizon, n_pixels)

    @property
    def policy(self) -> Policy:
        """The policy with the moving average of the weights."""
        return self.estimator.evaluated()

    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Begin with the mean gains of a fixed order on the present network."""
        if is_first:
            self.estimator.restore({})

    def is_due(self, number: int) -> bool:
        return self.training.is_due(number)

    def update(self, number: int) -> Float[Tensor, ""]:
        training, estimator = self.training, self.estimator
        epoch, step = divmod(number, estimator.n_steps)
        if self.drawn is None or self.drawn[0] != epoch:
            self.drawn = epoch, estimator.draws_of(epoch + 1)
        drawn = self.drawn[1]
        self.learner.train()
        score = estimator.batch_gradients(drawn, step)
        n_steps = training.n_sampler_updates
        rate = warmed_rate(training.sampler_rate, number, n_steps, training.n_warm)
        optimizer_step(self.material.optimizer, rate)
        estimator.after_step(drawn, step)
        # Repeats leave gradients behind, which a step of the reconstruction must not take.
        self.material.optimizer.zero_grad()
        return score

    def state(self) -> StateDict:
        return self.estimator.state()

    def restore(self, state: StateDict) -> None:
        self.estimator.restore(state)


def policy_config(config: JointConfig) -> PolicyConfig:
    """Return the settings of the estimator from those of the sampler."""
    training = config.training
    assert isinstance(training, DenseSampling)
    n_labelled = training.sampler_batch * config.acquisition.horizon
    return PolicyConfig(
        config.policy,
        replace(config.acquisition, size=None),
        DenseTraining(
            batch_size=training.sampler_batch,
            n_best=training.n_best,
            n_random=training.n_tried_at_random,
            n_baseline_slices=training.n_baseline_slices,
            n_repeats=training.n_repeats,
            n_repeated=training.n_repeated,
            buffer_size=_N_BATCHES_KEPT * n_labelled,
            flips=training.flips,
            metric=training.metric,
            protocol=training.protocol,
            seed=training.seed,
        ),
    )


@final
class AtRandom(Sampler):
    """Samples columns uniformly."""

    settings, looks = RandomSampling, False

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        _check_plain(config)
        return Random()

    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Do nothing."""


@final
class Fixed(Sampler):
    """Acquires one order, fitted greedily to the present network on training slices."""

    settings, looks = FixedSampling, False
    training: FixedSampling

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        _check_plain(config)
        return FixedOrder(n_cols=slices.n_cols, order=[])

    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Fit the order again, always on the same samples of slices."""
        slices, config, training = self.material.slices, self.material.config, self.training
        size = _N_FITTED_AT_ONCE[slices.device.type]
        found = fit_fixed_order(
            slices,
            self.material.view,
            replace(training_plan(config), batch_size=size, seed=training.seed),
            n_slices_per_step=training.n_fit_slices,
            device=slices.device,
        )
        self.restore({"order": found.order})

    def state(self) -> StateDict:
        assert isinstance(self.learner, FixedOrder)
        return {"order": self.learner.order}

    def restore(self, state: StateDict) -> None:
        slices = self.material.slices
        self.learner = FixedOrder(n_cols=slices.n_cols, order=state["order"]).to(slices.device)


def _check_plain(config: JointConfig) -> None:
    if config.policy.arguments:
        raise ConfigError(
            f"the policy of the sampler {config.training.method} has no settings, and [policy] has "
            f"{', '.join(config.policy.arguments)}; leave them out"
        )
