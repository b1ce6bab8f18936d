"""What the training loop runs: one way to train a module, step by step.

`kscout.training.algorithms` contains the estimators, which train a policy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor, nn

from kscout.acquisition.episode import SimulatedContext
from kscout.config import (
    JointConfig,
    JointTraining,
    PolicyConfig,
    PolicyTraining,
    ReconstructorConfig,
    learning_rate_at,
)
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.json_types import StateDict
from kscout.policies.views import View, view_of

ModuleT = TypeVar("ModuleT", bound=nn.Module)
ConfigT = TypeVar("ConfigT", bound=PolicyConfig | ReconstructorConfig | JointConfig)


@final
@dataclass
class Learner(Generic[ModuleT, ConfigT]):
    """A module in training, its settings and its optimizer."""

    module: ModuleT
    config: ConfigT
    optimizer: torch.optim.Optimizer
    start: ModuleT | None = None
    """The trained module with the initial weights; None for random initial weights."""

    @classmethod
    def of(cls, module: ModuleT, config: ConfigT) -> "Learner[ModuleT, ConfigT]":
        """Return a learner with Adam; the module is on its device."""
        parameters = list(module.parameters())
        optimizer = torch.optim.Adam(parameters, fused=parameters[0].device.type == "cuda")
        return cls(module, config, optimizer)

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, if it is constant within epochs."""
        training = self.config.training
        assert not isinstance(training, JointTraining)
        return learning_rate_at(training, epoch)

    def begin(self, epoch: int) -> None:
        """Set the learning rate of an epoch and the training mode of the module."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch)
        self.module.train()


@final
@dataclass(frozen=True)
class EpochResult:
    """Scores and counts of an epoch; both go into its line of metrics."""

    scores: Mapping[str, float]
    """Means over the epoch, e.g. `train_ssim`."""
    facts: Mapping[str, int] = field(default_factory=dict)
    """Counts, e.g. `n_reconstructions`."""


class Algorithm(ABC, Generic[ModuleT, ConfigT]):
    """One way to train a module, step by step.

    A subclass implements `take_step` and `end_epoch`. If more than weights is carried from step to
    step (a moving average, a replay buffer), it also implements `state` and `restore`; if the
    weights at validation are not the trained ones (but their moving average), `evaluated`. Sums
    over an epoch are added by `add`, because a checkpoint can be written after any step.
    """

    n_steps: int
    """Steps of an epoch."""

    def __init__(self, learner: Learner[ModuleT, ConfigT], n_slices: int) -> None:
        self.learner, self.config = learner, learner.config
        self.n_steps = math.ceil(n_slices / learner.config.training.batch_size)
        self.sums: dict[str, Tensor] = {}
        """Sums over the steps of this epoch."""
        self.means: dict[str, Tensor] = {}
        """Means over the batch of the last step, for display."""

    def begin_epoch(self, epoch: int) -> None:
        """Draw the random numbers of an epoch, counted from 1."""

    @abstractmethod
    def take_step(self, epoch: int, step: int) -> None:
        """Take one step, counted from 0."""

    @abstractmethod
    def end_epoch(self, epoch: int) -> EpochResult:
        """Return the result of an epoch, from its sums."""

    def n_steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch."""
        return self.n_steps

    def add(self, **values: Tensor) -> None:
        """Add to the sums over this epoch."""
        for name, value in values.items():
            known = self.sums.get(name)
            self.sums[name] = value.clone() if known is None else known + value

    def evaluated(self) -> ModuleT:
        """Return the module with the weights to validate and to write."""
        return self.learner.module

    def is_validated_first(self) -> bool:
        """Return whether the module is validated before its first epoch, as it is no random one."""
        return self.learner.start is not None

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, for its record."""
        return self.learner.rate(epoch)

    def state(self) -> StateDict:
        """Return the content of a checkpoint besides module and optimizer."""
        return {}

    def restore(self, state: StateDict) -> None:
        """Restore the content of `state`; it is empty at the beginning of a training."""


def optimizer_step(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Take an optimizer step with a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


PolicyLearner = Learner[Policy, PolicyConfig]

_RETIRED = {
    "gradients": "update",
    "varied": "augmented",
    "sized": "augmented",
    "averaged": "limit_gradients",
    "step_taken": "after_step",
}
"""Methods of estimators under their names of 0.2."""


class Estimator(Algorithm[Policy, PolicyConfig], ABC):
    """Trains one policy on a frozen reconstruction.

    A subclass implements `take_step` and `end_epoch`. If a step is one optimizer step on a batch
    of slices, derive from `kscout.training.GradientEstimator` instead.

    Args:
        learner: the policy in training.
        slices: the training slices.
        reconstructor: frozen, on the device of the policy.
    """

    settings: ClassVar[type[PolicyTraining]] = PolicyTraining
    """The section `[training]` of its runs; its defaults are the estimator's preset."""

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, len(slices))
        self.slices, self.reconstructor = slices, reconstructor
        self.training: PolicyTraining = learner.config.training
        self.device = next(learner.module.parameters()).device

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name in _RETIRED:
                raise ConfigError(
                    f"{cls.__name__} defines {name}, which is {_RETIRED[name]} since 0.3, as an "
                    "estimator trains one policy; docs/how-to/extend.md shows the methods"
                )

    @cached_property
    def view(self) -> View:
        """The policy in the arithmetic of its training."""
        training = self.config.training
        protocol = self.reconstructor.protocol_for(training.protocol)
        context = SimulatedContext(self.reconstructor, protocol, training.metric)
        return view_of(
            self.learner.module.bind(context),
            device=self.device,
            precision=training.precision,
            compiles=training.compile,
        )

    def validated(self, slices: SliceSet) -> SliceSet:
        """Return the held-out slices on which the policy is validated: all of them."""
        return slices

    def chooser(self) -> Policy:
        """Return the policy that chooses columns at validation, in training's arithmetic."""
        return self.evaluated()
