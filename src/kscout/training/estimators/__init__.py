"""Ways to train a policy: one file each, found by name in `kscout.names.ESTIMATORS`."""

from abc import ABC
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from kscout.config import PolicyConfig, PolicyTraining
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.policies.views import View, views_of
from kscout.training.loop import Course, EpochResult, OnStep
from kscout.training.trainee import Trainee

PolicyTrainee = Trainee[Policy, PolicyConfig]


class Estimator(Course[Policy, PolicyConfig], ABC):
    """Trains policies on a frozen reconstructor.

    A new one implements `take_step` and `end_epoch`; where a step is one optimizer step on a batch
    of slices, derive from `kscout.training.estimators.gradient.GradientEstimator` instead.

    Args:
        trainees: policies in lockstep, whose settings differ in the seed and in what the
            estimator's entry in `ESTIMATORS` says alone.
        slices: the training slices.
        reconstructor: frozen, on the policies' device.
    """

    settings: ClassVar[type[PolicyTraining]] = PolicyTraining
    """The section `[training]` of its runs; its defaults are the estimator's preset."""
    takes_groups: ClassVar[bool] = False
    """Whether it can learn where a step takes several columns (`acquisition.columns_per_step`)."""

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, len(slices))
        self.slices, self.reconstructor = slices, reconstructor
        self.device = next(trainees[0].module.parameters()).device

    @cached_property
    def views(self) -> list[View]:
        """The policies as they learn."""
        training = self.trainees[0].config.training
        return views_of(
            [trainee.module for trainee in self.trainees],
            device=self.device,
            precision=training.precision,
            compiles=training.compile,
        )

    def validated(self, slices: SliceSet) -> SliceSet:
        """Return the held-out slices that policies are validated on: all of them."""
        return slices

    def chooser(self, number: int) -> Policy:
        """Return a policy as it chooses columns at validation, in training's arithmetic."""
        return self.evaluated(number)


__all__ = ["EpochResult", "Estimator", "OnStep", "PolicyTrainee"]
