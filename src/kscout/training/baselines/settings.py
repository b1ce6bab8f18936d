"""Settings of the baselines: the section `[training]` of each. Nothing here needs torch."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from kscout.config import LearnedSampling, PolicyTraining
from kscout.config.bounds import Above, AtLeast, Between, OneOf
from kscout.names import ESTIMATORS, SAMPLERS

Unvisited = Literal["parent", "lowest"]


@final
@dataclass(frozen=True)
class AlphaZeroTraining(PolicyTraining):
    """How a policy learns to foresee a tree search; an epoch is one round of episodes.

    Of what arXiv 1901.04547 and 2010.16262 do not tell, each setting says why it is as it is.
    """

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "alphazero"
    """Name of the estimator."""
    n_epochs: Annotated[int, AtLeast(1)] = 540
    """Rounds at most (paper: 540)."""
    patience: Annotated[int, AtLeast(1)] = 40
    """Rounds without a better validation SSIM after which training ends (paper: early stopping;
    after how many is untold); as many as `n_epochs` never end it."""
    n_episodes: Annotated[int, AtLeast(1)] | None = None
    """Slices acquired in a round; not given: 64, or all of fewer. Untold; the network that guides
    searches improves once a round, so rounds are small."""
    n_searches: Annotated[int, AtLeast(1)] | None = None
    """Searches before each decision; not given: a sixteenth of the columns, and no less than 4.
    Untold; of 8, 32 and 128 at 128 columns, 8 teach most in the same time (docs/alphazero.md)."""
    n_updates: Annotated[int, AtLeast(1)] | None = None
    """Optimizer steps after the episodes; not given: each decision is seen eight times before it is
    forgotten. Untold; beside the searches before a decision, seeing it costs little."""
    n_memory: Annotated[int, AtLeast(1)] | None = None
    """Newest decisions that are learned from; not given: those of five rounds. Untold; their
    searches were guided by networks like the present one."""
    maximum_weight: Annotated[float, Between(0, 1)] = 0.5
    """Weight alpha of the best value below a mask beside their mean. Untold; both in equal
    parts."""
    noise_share: Annotated[float, Between(0, 1)] = 0.25
    """Share e of Dirichlet noise in the network's distribution. Untold; that of AlphaZero."""
    noise_concentration: Annotated[float, Above(0)] = 0.3
    """Concentration of that noise (arXiv 1901.04547: 0.3)."""
    exploration: Annotated[float, AtLeast(0)] = 0.25
    """Weight c of the network's distribution beside values, which are scaled to 0..1. Untold; of
    0.25, 1 and 4 the first teaches most in the same time (docs/alphazero.md)."""
    added_visits: Annotated[float, Above(0)] = 1.0
    """Added to the visits of a mask under that root. Untold; as printed a mask without visits
    divides by zero."""
    unvisited: Unvisited = "parent"
    """Values of a mask without visits: those of the mask before it, or the lowest that the slice's
    tree has seen. Untold; the former is what is known of it, the latter has searches return to
    few columns."""
    scales_values: bool = True
    """Whether values are scaled to 0..1 between the extremes of the slice's tree. Untold; SSIM of
    masks differs by thousandths, where the network's distribution differs by tenths."""
    batch_size: Annotated[int, AtLeast(1)] = 64
    """Decisions per optimizer step, over all processes. Untold."""
    learning_rate: Annotated[float, Above(0)] = 3e-4
    """Adam's step size. Untold; below Adam's usual 1e-3, as the network normalizes nothing."""
    decay_epochs: tuple[int, ...] = ()
    """Rounds after which the step size is multiplied by `decay_factor`."""
    keep_epochs: tuple[int, ...] = ()
    """Rounds whose weights are kept beside the last and the best."""


@final
@dataclass(frozen=True)
class DdqnTraining(PolicyTraining):
    """How a policy learns by double deep Q-learning; an epoch is one round of acquisitions.

    After arXiv 2007.10469, whose discount it has; what is not said to be theirs is ours.
    """

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "ddqn"
    """Name of the estimator."""
    n_epochs: Annotated[int, AtLeast(1)] = 100
    """Rounds."""
    n_episodes: Annotated[int, AtLeast(1)] = 256
    """Slices acquired in a round, or all of fewer."""
    n_updates: Annotated[int, AtLeast(1)] = 128
    """Optimizer steps after them."""
    n_memory: Annotated[int, AtLeast(1)] = 20_000
    """Newest steps that are learned from."""
    discount: Annotated[float, Between(0, 1)] = 0.5
    """Of what follows a column (arXiv 2007.10469: 0.5)."""
    explore_first: Annotated[float, Between(0, 1)] = 1.0
    """Chance of any column in the first round."""
    explore_last: Annotated[float, Between(0, 1)] = 0.05
    """The same from the middle of the training on; it falls evenly until then."""
    n_target: Annotated[int, AtLeast(1)] = 256
    """Optimizer steps after which the copy that judges next columns is made anew."""
    scale: Annotated[float, Above(0)] = 100.0
    """Factor of gains, which are thousandths of SSIM, so that scores are of the order of one."""
    batch_size: Annotated[int, AtLeast(1)] = 64
    """Steps per optimizer step, over all processes."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-4
    """Adam's step size."""
    decay_epochs: tuple[int, ...] = ()
    """Rounds after which the step size is multiplied by `decay_factor`."""
    keep_epochs: tuple[int, ...] = ()
    """Rounds whose weights are kept beside the last and the best."""

    def chance(self, epoch: int) -> float:
        """Return the chance of any column in a round, counted from 1."""
        done = min(1.0, 2 * (epoch - 1) / max(1, self.n_epochs - 1))
        return self.explore_first + done * (self.explore_last - self.explore_first)


@final
@dataclass(frozen=True)
class StraightThroughSampling(LearnedSampling):
    """A policy whose draws are differentiated as if they were their probabilities."""

    method: Annotated[str, OneOf("sampler", SAMPLERS)] = "straight-through"
    """Name of the sampler."""
    temperature: Annotated[float, Above(0)] = 1.0
    """Of the probabilities that gradients go through; choices do not depend on it."""


@final
@dataclass(frozen=True)
class LoupeSampling(LearnedSampling):
    """One learned density for all slices, differentiated as `straight-through` is."""

    method: Annotated[str, OneOf("sampler", SAMPLERS)] = "loupe"
    """Name of the sampler."""
    sampler_every: Annotated[int, AtLeast(1)] = 4
    """Steps of the reconstruction for each step of the sampler."""
    sampler_batch: Annotated[int, AtLeast(1)] = 64
    """Slices per step of the sampler."""
    sampler_rate: Annotated[float, Above(0), Between(0, 1e3)] = 5e-2
    """Its largest step size: of logits, not of a network's weights."""
    temperature: Annotated[float, Above(0)] = 1.0
    """Of the probabilities that gradients go through; choices do not depend on it."""
