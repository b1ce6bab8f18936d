"""Settings of trainings: the section `[training]` of reconstructors, and of policies by estimator.

`training.method` selects the class through `kscout.names.ESTIMATORS`; the defaults of a class are
the estimator's preset, and a setting of another estimator is an unknown key. Nothing here needs
torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, final

from kscout.config.bounds import Above, AtLeast, Between, OneOf
from kscout.config.records import check
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, METRICS, EstimatorEntry, Protocol, Registry, import_target

Methods = Registry[EstimatorEntry]


def settings_class(method: str, methods: Methods = ESTIMATORS) -> type[Any]:
    """Return the class of the settings of an estimator, or of a sampler."""
    entry = methods[method]
    if entry.settings:
        return import_target(entry.settings, of="settings class")
    return methods.resolve(method).settings


def check_method(kind: type, method: str, methods: Methods) -> None:
    """Raise an error for settings of another method."""
    expected = methods[method].settings
    if expected not in ("", f"{kind.__module__}:{kind.__qualname__}"):
        raise ConfigError(
            f"{kind.__name__} has no method {method!r}; its settings are "
            f"{expected.replace(':', '.')}"
        )


def picked_settings(methods: Methods, default: str) -> Callable[[JsonObject], type[Any]]:
    """Return a function that selects the class of settings of a table `[training]`."""

    def picked(table: JsonObject) -> type[Any]:
        method = table.get("method", default)
        # Reading the table reports a method that does not exist.
        return settings_class(method if method in methods else default, methods)

    return picked


_Share = Annotated[float, Between(0, 1)]
Convolution = Literal["auto", "onednn", "onednn-last", "native", "native-last", "compiled"]


@final
@dataclass(frozen=True)
class ReconstructorTraining:
    """How a reconstructor learns from fully sampled slices under random masks."""

    n_epochs: Annotated[int, AtLeast(1)] = 50
    """Passes over the training split (paper: 50)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per optimizer step, over all processes (paper: 16)."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-3
    """Adam's step size (paper: 1e-3)."""
    n_warm: Annotated[int | None, AtLeast(0)] = None
    """Optimizer steps, at most a tenth of all, over which the step size rises to `learning_rate`;
    it then falls linearly to zero. Not given: it changes at `decay_epochs` alone (paper)."""
    decay_epochs: tuple[int, ...] = (40,)
    """Epochs after which the step size is multiplied by `decay_factor` (paper: 40)."""
    decay_factor: Annotated[float, Above(0), Between(0, 1)] = 0.1
    """Factor at each decay (paper: 0.1)."""
    accelerations: tuple[Annotated[float, AtLeast(1)], ...] = (4.0, 4.0, 4.0, 6.0, 6.0, 8.0)
    """All columns divided by measured columns, one sampled per slice (paper: 4, 4, 4, 6, 6, 8)."""
    center_fractions: tuple[_Share, ...] = (0.25, 0.167, 0.125, 0.167, 0.125, 0.125)
    """Fraction of columns at the center that are always measured, paired with `accelerations`."""
    flips: bool = False
    """Whether half of the slices are mirrored left to right (paper: no)."""
    protocol: Protocol = "blind"
    """Statistics that normalize targets: those of the zero-filled image (blind) or of the target
    (paper). (default: blind; preset paper-unet: paper)"""
    convolution: Convolution = "auto"
    """Convolution backend and layout; `auto` is chosen by rule for the machine, and recorded."""
    patience: Annotated[int | None, AtLeast(1)] = None
    """Epochs without a better validation SSIM after which training ends, and the run's weights are
    those of the best epoch; not given: the last epoch comes (paper: so)."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    seed: int = 0
    """Random seed for initialization, order of slices and masks."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.accelerations) != len(self.center_fractions) or not self.accelerations:
            raise ConfigError(
                f"{len(self.accelerations)} accelerations with {len(self.center_fractions)} "
                "center_fractions; they are sampled in pairs: give as many of each, at least one"
            )


FrozenPrecision = Literal["auto", "fp32", "fp16"]


@dataclass(frozen=True)
class PolicyTraining:
    """What all ways to train a policy have in common; each estimator adds its own settings."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = ""
    """Name of the estimator."""
    n_epochs: Annotated[int, AtLeast(1)] = 50
    """Passes over the training split (paper: 50)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per optimizer step, over all processes (paper: 16)."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 5e-5
    """Adam's step size (paper: 5e-5)."""
    decay_epochs: tuple[int, ...] = (40,)
    """Epochs after which the step size is multiplied (paper: 40; non-greedy 10, 20, 30, 40)."""
    decay_factor: Annotated[float, Above(0), Between(0, 1)] = 0.1
    """Factor at each decay (paper: 0.1; non-greedy 0.5)."""
    patience: Annotated[int | None, AtLeast(1)] = None
    """Epochs without a better validation SSIM after which training ends, and the run's weights are
    those of the best epoch; not given: the last epoch (as in the paper, except AlphaZero)."""
    keep_epochs: tuple[int, ...] = (1, 10, 20, 30, 40, 50)
    """Epochs whose weights are stored, for gradient noise (paper: 1, 10, 20, 30, 40, 50)."""
    metric: Annotated[str, OneOf("metric", METRICS)] = "ssim"
    """Metric of rewards and of the best epoch: ssim, psnr, nmse (its negative), or
    `module:function`, called as f(images, targets, data_range=data_range) (paper: ssim)."""
    protocol: Protocol | None = None
    """Statistics that return images to their units before they are scored: of the ground truth
    (paper) or of the measurement (blind). (default: as the reconstruction was trained, else
    blind)"""
    precision: FrozenPrecision = "auto"
    """Arithmetic: `auto` is fp32 on a CPU; with CUDA kernels reconstructions, choices and gradients
    are in 16 bit, sums and weights in 32 bit (paper: fp32)."""
    compile: bool = False
    """Use torch.compile on CUDA for policies without compiled kernels, for example that for brains;
    no effect on other policies, on a CPU or with fp32."""
    convolution: Convolution = "auto"
    """Convolution backend and layout; `auto` is chosen by rule for the machine, and recorded."""
    seed: int = 0
    """Random seed for initialization, order of slices and actions."""

    def __post_init__(self) -> None:
        check(self)
        check_method(type(self), self.method, ESTIMATORS)

    @property
    def varied(self) -> JsonObject:
        """Settings of the estimator in which runs of one command may differ, besides the seed."""
        return {name: getattr(self, name) for name in ESTIMATORS[self.method].varies}

    @property
    def n_tried(self) -> int:
        """Columns tried, or trajectories followed, per slice and step."""
        return 1

    @property
    def n_paths(self) -> int:
        """Acquisitions of one slice that are under way at a time."""
        return 1

    def n_bytes(self, n_slices: int, horizon: int, n_pixels: int) -> int:
        """Return the bytes of memory that an epoch needs at least, without slices and network."""
        draws = 4 * n_slices * horizon * self.n_tried
        return draws + 16 * min(self.batch_size, n_slices) * self.n_paths * n_pixels

    @property
    def label(self) -> str:
        """Name of such runs in folders and tables."""
        return ESTIMATORS[self.method].label.format(**self.varied) or self.method.rpartition(":")[2]


@dataclass(frozen=True)
class GradientTraining(PolicyTraining):
    """How a policy learns by an estimator that draws q columns, or q trajectories."""

    n_trajectories: Annotated[int, AtLeast(2)] = 8
    """Columns sampled per state (greedy) or trajectories sampled per slice (paper: q = 8)."""

    @property
    def n_tried(self) -> int:
        return self.n_trajectories


@final
@dataclass(frozen=True)
class GreedyTraining(GradientTraining):
    """How a policy learns by the paper's greedy estimator."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "greedy"


@final
@dataclass(frozen=True)
class NonGreedyTraining(GradientTraining):
    """How a policy learns by the paper's non-greedy estimator."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "ngreedy"
    gamma: Annotated[float, Between(0, 1)] = 1.0
    """Discount of later rewards (paper: 0 to 1; NGreedy is 1)."""
    decay_epochs: tuple[int, ...] = (10, 20, 30, 40)
    """Epochs after which the step size is multiplied (paper: 10, 20, 30, 40)."""
    decay_factor: Annotated[float, Above(0), Between(0, 1)] = 0.5
    """Factor at each decay (paper: 0.5)."""

    @property
    def n_paths(self) -> int:
        return self.n_trajectories


@final
@dataclass(frozen=True)
class DenseTraining(PolicyTraining):
    """How a policy learns the gain of every column, from many that are tried at each state."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "dense"
    flips: bool = True
    """Whether half of the slices are mirrored left to right, sampled again in each epoch."""
    n_epochs: Annotated[int, AtLeast(1)] = 10
    """Passes over the training split."""
    batch_size: Annotated[int, AtLeast(1)] = 48
    """Slices per optimizer step, over all processes."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 6e-4
    """Adam's largest step size: it rises to it over `n_warm` steps, then falls to zero."""
    decay_epochs: tuple[int, ...] = ()
    """Epochs after which the step size is also multiplied by `decay_factor`."""
    n_warm: Annotated[int, AtLeast(0)] = 100
    """Optimizer steps over which the step size rises."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    n_best: Annotated[int, AtLeast(1)] = 8
    """Columns tried at each state: those with the highest scores."""
    n_random: Annotated[int, AtLeast(1)] = 16
    """Columns tried at random, so every column is tried at times; one may be sampled twice."""
    average: Annotated[float, Between(0, 1)] = 0.995
    """Decay of the moving average of the weights, which is validated and saved."""
    n_repeats: Annotated[int, AtLeast(0)] = 8
    """Optimizer steps on states from the replay buffer after each batch: they cost far less than
    to try the columns."""
    n_repeated: Annotated[int, AtLeast(1)] | None = None
    """States in each of these steps, over all processes, sampled with replacement. Not given: 256,
    or the number of states of a smaller batch."""
    buffer_size: Annotated[int, AtLeast(1)] = 300_000
    """Size of the replay buffer: the newest states."""
    n_baseline_slices: Annotated[int, AtLeast(1)] = 256
    """Slices per step for the baseline gains, which are the mean gains along a fixed order."""

    def n_bytes(self, n_slices: int, horizon: int, n_pixels: int) -> int:
        """Add the replay buffer, and the states of steps on it."""
        n_bytes = super().n_bytes(n_slices, horizon, n_pixels)
        if not self.n_repeats:
            return n_bytes
        n_bytes += 6 * self.n_tried * min(self.buffer_size, self.n_epochs * n_slices * horizon)
        n_batches = math.ceil(n_slices / self.batch_size)
        n_again = self.n_seen_again(n_slices, horizon)
        draws = 4 * n_batches * self.n_repeats * n_again
        return n_bytes + draws + 16 * n_again * n_pixels

    def n_seen_again(self, n_slices: int, horizon: int) -> int:
        """Return the states in each step on the replay buffer."""
        n_states = min(self.batch_size, n_slices) * horizon
        return min(256, n_states) if self.n_repeated is None else self.n_repeated

    @property
    def n_tried(self) -> int:
        return self.n_best + self.n_random


@final
@dataclass(frozen=True)
class PosteriorTraining(PolicyTraining):
    """How a policy learns to sample images that agree with the measurement."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "posterior"
    flips: bool = True
    """Whether half of the slices are mirrored left to right, sampled again in each epoch."""
    n_epochs: Annotated[int, AtLeast(1)] = 20
    """Passes over the training split."""
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Slices per optimizer step, over all processes."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-3
    """Adam's largest step size: it rises to it over `n_warm` steps, then falls to zero."""
    decay_epochs: tuple[int, ...] = ()
    """Epochs after which the step size is also multiplied by `decay_factor`."""
    n_warm: Annotated[int, AtLeast(0)] = 200
    """Optimizer steps over which the step size rises."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    follows: str = ""
    """A trained policy, as for `kscout.policies.load`: training masks have the columns that it
    selects, half of them with some random other columns. None: columns are sampled by their mean
    gains along a fixed order."""
    n_baseline_slices: Annotated[int, AtLeast(1)] = 256
    """Slices per step on which the fixed order is fitted."""
    n_validated: Annotated[int, AtLeast(1)] = 64
    """Slices that are validated, at most: many columns of each are tried on every sample."""

    def n_bytes(self, n_slices: int, horizon: int, n_pixels: int) -> int:
        """Add one number per column."""
        draws = 4 * n_slices * math.isqrt(n_pixels)
        return super().n_bytes(n_slices, horizon, n_pixels) + draws


@final
@dataclass(frozen=True)
class EnsembleTraining(PolicyTraining):
    """How the weights of several policies are fitted."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "ensemble"
    n_epochs: Annotated[int, AtLeast(1)] = 1
    """How often weights are fitted, each time on other slices."""
    decay_epochs: tuple[int, ...] = ()
    """Without effect: nothing is learned step by step."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    n_slices: Annotated[int, AtLeast(1)] = 96
    """Slices that are acquired, at most."""
    n_best: Annotated[int, AtLeast(1)] = 8
    """Columns tried at each step for each member: those with its highest scores."""
    ordered: tuple[Annotated[int, AtLeast(0)], ...] = ()
    """Number of first steps that acquire the columns of a fixed order, the same for all slices; of
    several numbers the one with the best final scores is selected. None: no step."""
    n_baseline_slices: Annotated[int, AtLeast(1)] = 256
    """Slices per step on which the fixed order is fitted."""
    n_validated: Annotated[int, AtLeast(1)] = 64
    """Slices that are validated, at most: members may try many columns of each."""

    @property
    def n_tried(self) -> int:
        return self.n_best


def training_of(method: str) -> PolicyTraining:
    """Return the preset of an estimator: the defaults of its settings."""
    return settings_class(method)(method=method)


def estimators_with(setting: str) -> list[str]:
    """Return the estimators of kscout that have a setting."""
    found = {name: settings_class(name) for name in ESTIMATORS.entries}
    return [name for name, kind in found.items() if setting in {f.name for f in fields(kind)}]


def learning_rate_at(training: ReconstructorTraining | PolicyTraining, epoch: int) -> float:
    """Return the step size of the optimizer during an epoch, counted from 1."""
    n_decays = sum(epoch > decay_epoch for decay_epoch in training.decay_epochs)
    return training.learning_rate * training.decay_factor**n_decays


def warmed_rate(rate: float, n_done: int, n_steps: int, n_warm: int) -> float:
    """Return a step size that rises to `rate` over `n_warm` steps and falls to zero."""
    return rate * min(1.0, (n_done + 1) / (n_warm + 1)) * (1 - n_done / n_steps)
