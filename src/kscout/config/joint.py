"""Settings of joint trainings: the section `[training]` of `train joint`, one class per sampler.

`training.method` picks the class through `kscout.names.SAMPLERS`. What decides how much the
reconstruction learns is common to all, so that samplers are compared at equal updates.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self, final

from kscout.config.bounds import Above, AtLeast, Between, OneOf
from kscout.config.records import check
from kscout.config.training import Convolution, DenseTraining, check_method
from kscout.errors import ConfigError
from kscout.names import METRICS, SAMPLERS, Protocol

_Method = Annotated[str, OneOf("sampler", SAMPLERS)]


@dataclass(frozen=True)
class JointTraining:
    """How a reconstruction learns from the masks of a sampler; each sampler adds its own."""

    method: _Method = ""
    """Name of the sampler."""
    flips: bool = True
    """Whether half of the slices are mirrored left to right, sampled at each refill before they are
    acquired."""
    n_updates: Annotated[int, AtLeast(0)] = 0
    """Optimizer steps of the reconstruction in total, without those of the sampler. (default: 100
    passes over the slices, but 600 to 6000 steps)"""
    batch_size: Annotated[int, AtLeast(1)] = 64
    """Slices per step of the reconstruction, each with one mask."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-3
    """Adam's largest step size: it rises to it over `n_warm` steps, then falls to zero."""
    n_warm: Annotated[int, AtLeast(0)] = 100
    """Steps over which the step sizes rise, of the reconstruction and of the sampler."""
    n_checkpoints: Annotated[int, AtLeast(1)] = 10
    """Equal parts of the training, which outputs call epochs; each ends with a validation."""
    random_share: Annotated[float, Between(0, 1)] = 0.1
    """Fraction of the updates, at the beginning, with random columns; the sampler is first used
    after them, for a network that has been trained."""
    n_pool: Annotated[int, AtLeast(1)] = 2048
    """Number of newest acquisitions whose masks, of all steps, are used for training; fewer if the
    dataset has fewer slices than a refill, so masks do not become older."""
    n_refill: Annotated[int, AtLeast(1)] = 256
    """Slices that are acquired again at a time."""
    refill_every: Annotated[int, AtLeast(1)] = 64
    """Steps of the reconstruction between two refills."""
    metric: Annotated[str, OneOf("metric", METRICS)] = "ssim"
    """Metric that the sampler maximizes, and of the best epoch: ssim, psnr, nmse (its negative) or
    module:function."""
    protocol: Protocol = "blind"
    """Statistics that normalize targets and return images to their units: of the ground truth
    (paper) or of the measurement (blind). (default: blind)"""
    compile: bool = False
    """Whether torch.compile builds the gradients of a U-Net on CUDA; sums are rounded in another
    order. Without effect on other reconstructions, or on a CPU."""
    convolution: Convolution = "auto"
    """Convolution backend and layout; `auto` is chosen by rule for the machine, and recorded."""
    patience: ClassVar[None] = None
    """No training ends early: updates are equal."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    seed: int = 0
    """Random seed for initialization, slices, masks and the sampler."""

    def __post_init__(self) -> None:
        check(self)
        check_method(type(self), self.method, SAMPLERS)
        if 0 < self.n_updates < self.n_checkpoints:
            raise ConfigError(
                f"{self.n_updates} updates cannot be divided into {self.n_checkpoints} parts; "
                "lower training.n_checkpoints or raise training.n_updates"
            )
        if self.n_random == self.n_updates > 0 and not isinstance(self, RandomSampling):
            raise ConfigError(
                f"the sampler {self.method} would never be asked: all {self.n_updates} updates are "
                "of random columns; lower training.random_share, or use --method random"
            )

    @property
    def n_epochs(self) -> int:
        return self.n_checkpoints

    def for_slices(self, n_slices: int) -> Self:
        """Return the settings with a number of updates, by default that for a dataset."""
        if self.n_updates:
            return self
        return replace(self, n_updates=min(6000, max(600, -(-100 * n_slices // self.batch_size))))

    @property
    def n_random(self) -> int:
        """Updates of the reconstruction before the sampler is asked."""
        return round(self.random_share * self.n_updates)

    def n_pooled(self, n_slices: int) -> int:
        """Return the acquisitions that the pool holds for a number of training slices."""
        n_refills = -(-self.n_pool // self.n_refill)
        return min(self.n_pool, n_refills * min(self.n_refill, n_slices))

    def updates_of(self, epoch: int) -> range:
        """Return the numbers of an epoch's updates; epochs count from 1, updates from 0."""
        ends = (self.n_updates * done // self.n_epochs for done in (epoch - 1, epoch))
        return range(*ends)


@final
@dataclass(frozen=True)
class RandomSampling(JointTraining):
    """Random columns: nothing but the reconstruction learns."""

    method: _Method = "random"


@final
@dataclass(frozen=True)
class FixedSampling(JointTraining):
    """One order for all slices, fitted greedily for the network as it is, once an epoch."""

    method: _Method = "fixed"
    n_fit_slices: Annotated[int, AtLeast(1)] = 256
    """Training slices sampled for each column of the order."""


@dataclass(frozen=True)
class LearnedSampling(JointTraining):
    """What samplers that learn by gradients have in common."""

    sampler_every: Annotated[int, AtLeast(1)] = 8
    """Steps of the reconstruction for each step of the sampler."""
    sampler_batch: Annotated[int, AtLeast(1)] = 16
    """Slices per step of the sampler."""
    sampler_rate: Annotated[float, Above(0), Between(0, 1e3)] = 6e-4
    """Its largest step size, which rises and falls as that of the reconstruction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_updates and not self.n_sampler_updates:
            raise ConfigError(
                f"the sampler {self.method} would never learn: it takes a step every "
                f"{self.sampler_every} of the last {self.n_updates - self.n_random} updates; lower "
                "training.sampler_every or raise training.n_updates"
            )

    @property
    def n_sampler_updates(self) -> int:
        """Optimizer steps of the sampler in all."""
        return self.n_updates // self.sampler_every - self.n_random // self.sampler_every

    def is_due(self, number: int) -> bool:
        """Return whether the sampler takes a step after an update of the reconstruction."""
        return number >= self.n_random and (number + 1) % self.sampler_every == 0


@final
@dataclass(frozen=True)
class DenseSampling(LearnedSampling):
    """A policy that learns the gains of many columns tried at each state.

    To try the columns of a batch takes as long as eight repeats of 256 states, so that half as many
    batches, each with eight, take no longer and four times as many steps.
    """

    method: _Method = "dense"
    sampler_every: Annotated[int, AtLeast(1)] = 10
    """Steps of the reconstruction for each batch whose columns are tried."""
    sampler_batch: Annotated[int, AtLeast(1)] = 48
    """Slices per batch of the sampler."""
    n_best: Annotated[int, AtLeast(1)] = DenseTraining.n_best
    """Columns tried at each state: those with the highest scores."""
    n_tried_at_random: Annotated[int, AtLeast(1)] = DenseTraining.n_random
    """Columns tried at random, so every column is tried at times."""
    n_baseline_slices: Annotated[int, AtLeast(1)] = DenseTraining.n_baseline_slices
    """Slices per step for the baseline gains, the mean gains along a fixed order."""
    n_repeats: Annotated[int, AtLeast(0)] = DenseTraining.n_repeats
    """Steps on states from the replay buffer after each batch, as the network now sees them."""
    n_repeated: Annotated[int, AtLeast(1)] | None = None
    """States in each of these steps; not given: 256, or the number of a smaller batch."""
