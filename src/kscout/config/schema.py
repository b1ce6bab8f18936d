"""Settings of a run: frozen dataclasses, their presets, and the paper's values.

A component's keyword-only constructor is its own schema, so here it is a `Component`: a name and
arguments, checked where it is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, final

from kscout.columns import parse_columns
from kscout.config.bounds import REST, AtLeast, Chosen, Words
from kscout.config.joint import FixedSampling, JointTraining
from kscout.config.records import check
from kscout.config.training import (
    GreedyTraining,
    PolicyTraining,
    ReconstructorTraining,
    picked_settings,
    settings_class,
    training_of,
)
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS, SAMPLERS

Argument = bool | int | float | str | list[int] | list[float] | list[int | float] | list[str]


@final
@dataclass(frozen=True)
class Component:
    """A registered reconstructor or policy by name, with the arguments of its constructor."""

    name: str
    """Name in the registry."""
    arguments: Annotated[
        Mapping[str, Annotated[Argument, Words("a number, a string, true or false, or a list")]],
        REST,
    ] = field(default_factory=dict)
    """Keyword arguments; in TOML they stand next to the name."""

    def __post_init__(self) -> None:
        check(self)


@final
@dataclass(frozen=True)
class AcquisitionSetting:
    """Where an acquisition starts and how far it goes."""

    n_initial: Annotated[int, AtLeast(1)] = 16
    """Central columns measured at the start (paper: 16, 4, 32 or 8)."""
    horizon: Annotated[int, AtLeast(1)] = 16
    """Columns acquired after the start (paper: 16, 28, 16 or 28)."""
    size: int | None = None
    """Pixels along each side that the setting is meant for; not given: any (paper: 128, 256)."""
    initial: str | None = None
    """Columns to start from in place of central ones, `n_initial` of them, like "0,3,60-70"."""

    def __post_init__(self) -> None:
        check(self)
        if not isinstance(self.start, int) and len(set(self.start)) != self.n_initial:
            raise ConfigError(
                f"initial names {len(set(self.start))} columns and n_initial is {self.n_initial}; "
                f"set n_initial = {len(set(self.start))}"
            )
        if self.size is not None and self.budget > self.size:
            raise ConfigError(
                f"n_initial {self.n_initial} + horizon {self.horizon} exceeds the {self.size} "
                f"columns; lower horizon to {self.size - self.n_initial} or less"
            )

    def __str__(self) -> str:
        start = self.n_initial if self.initial is None else f"{self.n_initial} ({self.initial})"
        return f"{start} + {self.horizon} columns"

    @property
    def start(self) -> int | tuple[int, ...]:
        """The number of central columns, or the columns themselves."""
        return self.n_initial if self.initial is None else parse_columns(self.initial)

    @property
    def budget(self) -> int:
        """Columns measured at the end."""
        return self.n_initial + self.horizon


RECONSTRUCTOR_TRAININGS: dict[str, ReconstructorTraining] = {
    "unet": ReconstructorTraining(n_warm=100, decay_epochs=(), flips=True),
    "paper-unet": ReconstructorTraining(protocol="paper"),
}
"""Presets of `train reconstructor`; the first is the default."""


@final
@dataclass(frozen=True)
class ReconstructorConfig:
    """All settings of a `train reconstructor` run."""

    kind: ClassVar[str] = "reconstructor"
    reconstructor: Component = Component("unet")
    """What is trained."""
    training: ReconstructorTraining = field(default_factory=lambda: RECONSTRUCTOR_TRAININGS["unet"])
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
    training: Annotated[
        PolicyTraining, Chosen(picked_settings(ESTIMATORS, GreedyTraining.method))
    ] = field(default_factory=GreedyTraining)
    """How it is trained."""

    @classmethod
    def of(cls, method: str) -> "PolicyConfig":
        """Return the preset of an estimator, with the network that it trains by default."""
        return cls(Component(ESTIMATORS[method].policy), training=training_of(method))


@final
@dataclass(frozen=True)
class JointConfig:
    """All settings of a `train joint` run."""

    kind: ClassVar[str] = "joint"
    reconstructor: Component | None = None
    """What reconstructs; not given: the paper's U-Net, or what training starts from."""
    policy: Component = Component("fixed")
    """What chooses columns."""
    acquisition: AcquisitionSetting = AcquisitionSetting()
    """What both are trained for."""
    training: Annotated[JointTraining, Chosen(picked_settings(SAMPLERS, FixedSampling.method))] = (
        field(default_factory=FixedSampling)
    )
    """How they are trained."""

    @classmethod
    def of(cls, method: str) -> "JointConfig":
        """Return the preset of a sampler, with the policy that it trains by default."""
        training = settings_class(method, SAMPLERS)(method=method)
        return cls(policy=Component(SAMPLERS[method].policy), training=training)


Config = ReconstructorConfig | PolicyConfig | JointConfig

ACQUISITIONS: dict[str, AcquisitionSetting] = {
    "knee-base": AcquisitionSetting(n_initial=16, horizon=16, size=128),
    "knee-long": AcquisitionSetting(n_initial=4, horizon=28, size=128),
    "brain-base": AcquisitionSetting(n_initial=32, horizon=16, size=256),
    "brain-long": AcquisitionSetting(n_initial=8, horizon=28, size=256),
}
