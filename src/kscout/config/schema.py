"""Settings of a run: frozen dataclasses, their presets, and the paper's values.

A component's keyword-only constructor is its own schema, so here it is a `Component`: a name and
arguments, checked where it is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, final

from kscout.config.bounds import REST, Above, AtLeast, Between, Told
from kscout.config.records import check
from kscout.errors import ConfigError
from kscout.names import Protocol

Precision = Literal["fp32", "bf16"]
FrozenPrecision = Literal["auto", "fp32", "fp16"]
Convolution = Literal["auto", "onednn", "onednn-last", "native", "native-last", "compiled"]
Method = Literal["greedy", "ngreedy"]
Argument = bool | int | float | str | list[int] | list[float] | list[int | float] | list[str]


@final
@dataclass(frozen=True)
class Component:
    """A registered reconstructor or policy by name, with the arguments of its constructor."""

    name: str
    """Name in the registry."""
    arguments: Annotated[
        Mapping[str, Annotated[Argument, Told("a number, a string, true or false, or a list")]],
        REST,
    ] = field(default_factory=dict)
    """Keyword arguments; in TOML they stand beside the name."""

    def __post_init__(self) -> None:
        check(self)


@final
@dataclass(frozen=True)
class AcquisitionSetting:
    """Where an acquisition starts and how far it goes."""

    n_initial: Annotated[int, AtLeast(1)] = 16
    """Central columns measured at the start (paper: 16, 4, 32, 8)."""
    horizon: Annotated[int, AtLeast(1)] = 16
    """Columns acquired one by one after the start (paper: 16, 28, 16, 28)."""
    size: int | None = None
    """Pixels along each side that the setting is meant for; not given: any (paper: 128, 256)."""

    def __post_init__(self) -> None:
        check(self)
        if self.size is not None and self.budget > self.size:
            raise ConfigError(
                f"n_initial {self.n_initial} + horizon {self.horizon} exceeds the {self.size} "
                f"columns; lower horizon to {self.size - self.n_initial} or less"
            )

    @property
    def budget(self) -> int:
        """Columns measured at the end."""
        return self.n_initial + self.horizon


@final
@dataclass(frozen=True)
class ReconstructorTraining:
    """How a reconstructor learns from fully sampled slices under random masks."""

    n_epochs: Annotated[int, AtLeast(1)] = 50
    """Passes over the training split (paper: 50)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per optimizer step, over all processes (paper: 16)."""
    learning_rate: Annotated[float, Above(0)] = 1e-3
    """Adam's step size (paper: 1e-3)."""
    decay_epochs: tuple[int, ...] = (40,)
    """Epochs after which the step size is multiplied by `decay_factor` (paper: 40)."""
    decay_factor: Annotated[float, Above(0)] = 0.1
    """Factor at each decay (paper: 0.1)."""
    accelerations: tuple[Annotated[float, AtLeast(1)], ...] = (4.0, 4.0, 4.0, 6.0, 6.0, 8.0)
    """Columns over measured columns, one drawn per slice (paper: 4, 4, 4, 6, 6, 8)."""
    center_fractions: tuple[Annotated[float, Between(0, 1)], ...] = (
        0.25,
        0.167,
        0.125,
        0.167,
        0.125,
        0.125,
    )
    """Share of columns always taken at the center, paired with `accelerations`."""
    protocol: Protocol = "paper"
    """Statistics that normalize targets: the target's (`paper`) or the zero-filled image's."""
    precision: Precision = "fp32"
    """Arithmetic of the network (paper: fp32)."""
    convolution: Convolution = "auto"
    """Convolution backend and layout; `auto` is chosen by rule for the machine, and recorded."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are kept beside the last and the best."""
    seed: int = 0
    """Keys initial weights, order of slices and masks."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.accelerations) != len(self.center_fractions) or not self.accelerations:
            raise ConfigError(
                f"{len(self.accelerations)} accelerations with {len(self.center_fractions)} "
                "center_fractions; they are drawn in pairs: give as many of each, at least one"
            )


@final
@dataclass(frozen=True)
class PolicyTraining:
    """How a policy learns by the greedy or the non-greedy estimator."""

    method: Method = "greedy"
    """Estimator of the policy's gradient."""
    gamma: Annotated[float, Between(0, 1)] = 1.0
    """Discount of later rewards, non-greedy only (paper: 0 to 1; NGreedy is 1)."""
    n_epochs: Annotated[int, AtLeast(1)] = 50
    """Passes over the training split (paper: 50)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per optimizer step, over all processes (paper: 16)."""
    n_trajectories: Annotated[int, AtLeast(2)] = 8
    """Columns drawn per state (greedy) or trajectories per slice (paper: q = 8)."""
    learning_rate: Annotated[float, Above(0)] = 5e-5
    """Adam's step size (paper: 5e-5)."""
    decay_epochs: tuple[int, ...] = (40,)
    """Epochs after which the step size is multiplied (paper: 40; non-greedy 10, 20, 30, 40)."""
    decay_factor: Annotated[float, Above(0)] = 0.1
    """Factor at each decay (paper: 0.1; non-greedy 0.5)."""
    keep_epochs: tuple[int, ...] = (1, 10, 20, 30, 40, 50)
    """Epochs whose weights are kept, for gradient noise (paper: 1, 10, 20, 30, 40, 50)."""
    protocol: Protocol = "paper"
    """How images are un-normalized before they are scored."""
    precision: FrozenPrecision = "auto"
    """Arithmetic: `auto` is fp32 on a CPU; on CUDA, where the kernels exist, 16-bit
    reconstructions, choices and gradients, with 32-bit sums and weights (paper: fp32)."""
    compile: bool = False
    """Whether torch.compile builds the gradients of a policy on CUDA that the fused kernels do not
    serve, such as the brain network; without effect on others, on a CPU or with fp32."""
    convolution: Convolution = "auto"
    """Convolution backend and layout; `auto` is chosen by rule for the machine, and recorded."""
    seed: int = 0
    """Keys initial weights, order of slices and actions."""

    def __post_init__(self) -> None:
        check(self)


@final
@dataclass(frozen=True)
class ReconstructorConfig:
    """All settings of a `train reconstructor` run."""

    kind: ClassVar[str] = "reconstructor"
    reconstructor: Component = Component("unet")
    """What is trained."""
    training: ReconstructorTraining = ReconstructorTraining()
    """How it is trained."""


@final
@dataclass(frozen=True)
class PolicyConfig:
    """All settings of a `train policy` run."""

    kind: ClassVar[str] = "policy"
    policy: Component = Component("conv")
    """What is trained."""
    acquisition: AcquisitionSetting = AcquisitionSetting()
    """What it is trained for."""
    training: PolicyTraining = PolicyTraining()
    """How it is trained."""


Config = ReconstructorConfig | PolicyConfig

ACQUISITIONS: dict[str, AcquisitionSetting] = {
    "knee-base": AcquisitionSetting(n_initial=16, horizon=16, size=128),
    "knee-long": AcquisitionSetting(n_initial=4, horizon=28, size=128),
    "brain-base": AcquisitionSetting(n_initial=32, horizon=16, size=256),
    "brain-long": AcquisitionSetting(n_initial=8, horizon=28, size=256),
}

# The paper's masks start at 8x; the long horizons start at 32x, which its U-Net never saw. The
# wide preset adds the states of a long acquisition, from its bare center to its end.
_WIDE_ACCELERATIONS = (32.0, 16.0, 8.0, 8.0, 4.0)
_WIDE_FRACTIONS = (0.03125, 0.03125, 0.03125, 0.0625, 0.03125)

RECONSTRUCTOR_TRAININGS: dict[str, ReconstructorTraining] = {
    "paper-unet": ReconstructorTraining(),
    "wide-unet": ReconstructorTraining(
        accelerations=ReconstructorTraining.accelerations + _WIDE_ACCELERATIONS,
        center_fractions=ReconstructorTraining.center_fractions + _WIDE_FRACTIONS,
    ),
}

POLICY_TRAININGS: dict[str, PolicyTraining] = {
    "greedy": PolicyTraining(),
    "ngreedy": PolicyTraining(method="ngreedy", decay_epochs=(10, 20, 30, 40), decay_factor=0.5),
}


def learning_rate_at(training: ReconstructorTraining | PolicyTraining, epoch: int) -> float:
    """Return the step size during an epoch, counted from 1."""
    n_decays = sum(epoch > decay_epoch for decay_epoch in training.decay_epochs)
    return training.learning_rate * training.decay_factor**n_decays
