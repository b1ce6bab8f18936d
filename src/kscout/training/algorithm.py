"""What the training loop runs: one way to train a module, step by step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar, final

import torch
from torch import Tensor, nn

from kscout.config import (
    JointConfig,
    JointTraining,
    PolicyConfig,
    ReconstructorConfig,
    learning_rate_at,
)
from kscout.errors import ConfigError
from kscout.json_types import StateDict
from kscout.training.distributed import n_processes

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

    Args:
        learner: the module in training.
        n_slices: number of training slices.
    """

    n_steps: int
    """Steps of an epoch."""
    typical_epoch: int | None = None
    """The first epoch with the duration of later ones; None if all epochs and steps are alike."""

    def __init__(self, learner: Learner[ModuleT, ConfigT], n_slices: int) -> None:
        self.learner, self.config = learner, learner.config
        self.n_steps = n_steps_of(n_slices, learner.config.training.batch_size)
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


def n_steps_of(n_slices: int, batch_size: int) -> int:
    """Return the optimizer steps of an epoch; a batch smaller than the processes is an error."""
    if batch_size < n_processes():
        raise ConfigError(
            f"a batch of {batch_size} cannot be shared by {n_processes()} processes; "
            "raise training.batch_size or start fewer"
        )
    return math.ceil(n_slices / batch_size)
