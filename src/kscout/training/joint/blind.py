"""Samplers without images: random columns, and one order for all slices."""

from dataclasses import replace
from typing import final

from kscout.acquisition.plan import training_plan
from kscout.config import FixedSampling, JointConfig, RandomSampling
from kscout.core import Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.json_types import StateDict
from kscout.policies.fixed import FixedOrder
from kscout.policies.random import Random
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.joint.sampler import Sampler

_N_FITTED_AT_ONCE = {"cpu": 16, "cuda": 64}
"""Slices on which columns are tried together, by kind of device; does not change results."""


@final
class AtRandom(Sampler):
    """Samples columns uniformly."""

    settings, looks = RandomSampling, False

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        """Return the random policy."""
        _check_plain(config)
        return Random()

    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Do nothing."""


@final
class Fixed(Sampler):
    """Acquires one order, fitted greedily to the present network on training slices."""

    settings, looks = FixedSampling, False

    @classmethod
    def make_policy(cls, config: JointConfig, slices: SliceSet) -> Policy:
        """Return an empty order."""
        _check_plain(config)
        return FixedOrder(n_cols=slices.n_cols, order=[])

    @property
    def training(self) -> FixedSampling:
        training = self.material.config.training
        assert isinstance(training, FixedSampling)
        return training

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
        self.learner = self._made(found.order)

    def _made(self, order: list[int]) -> Policy:
        slices = self.material.slices
        return FixedOrder(n_cols=slices.n_cols, order=order).to(slices.device)

    def state(self) -> StateDict:
        assert isinstance(self.learner, FixedOrder)
        return {"order": self.learner.order}

    def restore(self, state: StateDict) -> None:
        """Restore the order."""
        self.learner = self._made(state["order"])


def _check_plain(config: JointConfig) -> None:
    if config.policy.arguments:
        raise ConfigError(
            f"the policy of the sampler {config.training.method} has no settings, and [policy] has "
            f"{', '.join(config.policy.arguments)}; leave them out"
        )
