"""The adaptive sampler: gain regression on the present network.

A batch of labels is followed by steps on those of the last batches. Their states are seen as the
present network sees them; their gains are of a network that is a few updates older.
"""

import math
from dataclasses import replace
from typing import final

from jaxtyping import Float
from torch import Tensor

from kscout.config import DenseSampling, DenseTraining, JointConfig, PolicyConfig, warmed_rate
from kscout.core import Policy
from kscout.data.slices import SliceSet
from kscout.json_types import StateDict
from kscout.training.algorithm import Learner, optimizer_step
from kscout.training.algorithms.dense import Dense
from kscout.training.algorithms.gradient import EpochDraws
from kscout.training.joint.sampler import Material, Sampler


@final
class DenseGains(Sampler):
    """Trains a policy by the estimator `dense`, after updates of the reconstruction."""

    settings = DenseSampling

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
        return _training(self.material.config).is_due(number)

    def update(self, number: int) -> Float[Tensor, ""]:
        training, estimator = _training(self.material.config), self.estimator
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
        """Restore units, averaged weights and the replay buffer."""
        self.estimator.restore(state)


def policy_config(config: JointConfig) -> PolicyConfig:
    """Return the settings of the estimator from those of the sampler."""
    training = _training(config)
    n_labelled = training.sampler_batch * config.acquisition.horizon
    return PolicyConfig(
        config.policy,
        replace(config.acquisition, size=None),
        DenseTraining(
            batch_size=training.sampler_batch,
            clip=training.sampler_clip,
            average=training.sampler_average,
            n_best=training.n_best,
            n_random=training.n_tried_at_random,
            n_baseline_slices=training.n_baseline_slices,
            n_repeats=training.n_repeats,
            n_repeated=training.n_repeated,
            buffer_size=training.n_batches_kept * n_labelled,
            flips=training.flips,
            zoom=training.zoom,
            metric=training.metric,
            protocol=training.protocol,
            precision=training.sampler_precision,
            seed=training.seed,
        ),
    )


def _training(config: JointConfig) -> DenseSampling:
    assert isinstance(config.training, DenseSampling)
    return config.training
