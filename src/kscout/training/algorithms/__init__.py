"""Algorithms that train a policy: one file each, found by name in `kscout.names.ESTIMATORS`."""

from abc import ABC
from functools import cached_property
from typing import ClassVar

from kscout.acquisition.episode import SimulatedContext
from kscout.config import PolicyConfig, PolicyTraining
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.policies.views import View, view_of
from kscout.training.algorithm import Algorithm, EpochResult, Learner

PolicyLearner = Learner[Policy, PolicyConfig]

_RETIRED = {
    "gradients": "update",
    "varied": "augmented",
    "sized": "resized",
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
    takes_groups: ClassVar[bool] = False
    """Whether a step may measure several columns (`acquisition.columns_per_step`)."""

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, len(slices))
        self.slices, self.reconstructor = slices, reconstructor
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


__all__ = ["EpochResult", "Estimator", "PolicyLearner"]
