"""Settings of the baselines: the section `[training]` of each. Nothing here needs torch."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

from kscout.config import LearnedSampling, PolicyTraining
from kscout.config.bounds import Above, AtLeast, Between, OneOf
from kscout.names import ESTIMATORS, SAMPLERS

_N_SEEN, _N_REMEMBERED = 8, 5
"""Defaults: how often a decision is used, and for how many rounds it is stored."""


class Round(NamedTuple):
    """The work of one epoch."""

    n_episodes: int
    n_updates: int
    buffer_size: int


@dataclass(frozen=True)
class EpisodicTraining(PolicyTraining, ABC):
    """How a policy learns from a replay buffer; an epoch is one round of episodes."""

    batch_size: Annotated[int, AtLeast(1)] = 64
    """Stored rows per optimizer step, over all processes."""
    decay_epochs: tuple[int, ...] = ()
    """Rounds after which the step size is multiplied by `decay_factor`."""
    keep_epochs: tuple[int, ...] = ()
    """Rounds whose weights are stored in addition to the last and the best."""

    @abstractmethod
    def round_of(self, n_slices: int, horizon: int) -> Round:
        """Return the work of a round for a number of training slices and columns to acquire."""


@final
@dataclass(frozen=True)
class AlphaZeroTraining(EpisodicTraining):
    """How a policy learns to predict a tree search; an epoch is one round of episodes.

    Where arXiv 1901.04547 and 2010.16262 leave a value unspecified, the setting gives the reason.
    """

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "alphazero"
    n_epochs: Annotated[int, AtLeast(1)] = 540
    """Rounds at most (paper: 540)."""
    patience: Annotated[int, AtLeast(1)] = 40
    """Rounds without a better validation SSIM after which training ends (paper: early stopping,
    without a number). A value of `n_epochs` disables this."""
    n_episodes: Annotated[int, AtLeast(1)] | None = None
    """Slices acquired in a round; not given: 64, or all of fewer. Unspecified; rounds are
    small, since the network that guides searches improves once a round."""
    n_searches: Annotated[int, AtLeast(1)] | None = None
    """Searches before each decision; not given: a sixteenth of the columns, and at least 4.
    Unspecified; of 8, 32 and 128 at 128 columns, 8 gave the best SSIM in equal time."""
    n_updates: Annotated[int, AtLeast(1)] | None = None
    """Optimizer steps after the episodes; not given: each decision is used eight times.
    Unspecified; the searches before a decision cost much more than its use."""
    buffer_size: Annotated[int, AtLeast(1)] | None = None
    """Newest decisions in the replay buffer; not given: those of five rounds. Unspecified; similar
    networks guided their searches."""
    maximum_weight: Annotated[float, Between(0, 1)] = 0.5
    """Weight alpha of the best value below a mask; their mean has 1 - alpha. Unspecified."""
    noise_share: Annotated[float, Between(0, 1)] = 0.25
    """Fraction e of Dirichlet noise in the network's distribution. Unspecified; as in AlphaZero."""
    noise_concentration: Annotated[float, Above(0)] = 0.3
    """Concentration of that noise (arXiv 1901.04547: 0.3)."""
    exploration: Annotated[float, AtLeast(0)] = 0.25
    """Weight c of the network's distribution relative to values, which are scaled to 0..1.
    Unspecified; of 0.25, 1 and 4, 0.25 gave the best SSIM in equal time."""
    learning_rate: Annotated[float, Above(0)] = 3e-4
    """Adam's step size. Unspecified; below 1e-3, as the network has no normalization."""

    def round_of(self, n_slices: int, horizon: int) -> Round:
        n_episodes = min(self.n_episodes or 64, n_slices)
        n_decisions = n_episodes * horizon
        n_updates = self.n_updates or math.ceil(_N_SEEN * n_decisions / self.batch_size)
        return Round(n_episodes, n_updates, self.buffer_size or _N_REMEMBERED * n_decisions)

    def searches(self, n_cols: int) -> int:
        return self.n_searches or max(4, n_cols // 16)


@final
@dataclass(frozen=True)
class DdqnTraining(EpisodicTraining):
    """How a policy learns by double deep Q-learning; an epoch is one round of acquisitions.

    Only the discount is that of arXiv 2007.10469; all other values are ours.
    """

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "ddqn"
    n_epochs: Annotated[int, AtLeast(1)] = 100
    """Rounds."""
    n_episodes: Annotated[int, AtLeast(1)] = 256
    """Slices acquired in a round, or all of fewer."""
    n_updates: Annotated[int, AtLeast(1)] = 128
    """Optimizer steps after them."""
    buffer_size: Annotated[int, AtLeast(1)] = 20_000
    """Newest steps in the replay buffer."""
    discount: Annotated[float, Between(0, 1)] = 0.5
    """Of what follows a column (arXiv 2007.10469: 0.5)."""
    explore_last: Annotated[float, Between(0, 1)] = 0.05
    """Chance of any column from the middle of the training on; it falls evenly from 1 until
    then."""
    n_target: Annotated[int, AtLeast(1)] = 256
    """Optimizer steps after which the copy of the network is renewed."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-4
    """Adam's step size."""

    def round_of(self, n_slices: int, horizon: int) -> Round:
        return Round(min(self.n_episodes, n_slices), self.n_updates, self.buffer_size)

    def chance(self, epoch: int) -> float:
        """Return the chance of any column in a round, counted from 1."""
        done = min(1.0, 2 * (epoch - 1) / max(1, self.n_epochs - 1))
        return 1 + done * (self.explore_last - 1)


@final
@dataclass(frozen=True)
class StraightThroughSampling(LearnedSampling):
    """A policy that sees the image of its slice."""

    method: Annotated[str, OneOf("sampler", SAMPLERS)] = "straight-through"


@final
@dataclass(frozen=True)
class LoupeSampling(LearnedSampling):
    """One learned density for all slices."""

    method: Annotated[str, OneOf("sampler", SAMPLERS)] = "loupe"
    sampler_every: Annotated[int, AtLeast(1)] = 4
    """Steps of the reconstruction for each step of the sampler."""
    sampler_batch: Annotated[int, AtLeast(1)] = 64
    """Slices per step of the sampler."""
    sampler_rate: Annotated[float, Above(0), Between(0, 1e3)] = 5e-2
    """Its largest step size: of logits, not of a network's weights."""
