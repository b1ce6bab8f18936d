"""What the demo runs and where it keeps it: learning is real, and two CPU cores take minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

from kscout.config import (
    AcquisitionSetting,
    Component,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
    read,
    settings_class,
)
from kscout.data.generate import MakeSettings
from kscout.evaluation.analyses.reconstructions import Reconstructions
from kscout.evaluation.compare import EvaluationSetting
from kscout.evaluation.trajectories import AcquisitionPlan
from kscout.names import POLICIES

METHODS = ("greedy", "ngreedy")
"""Estimators that a policy is trained by, which also name their runs."""
BASELINES = tuple(name for name, one in POLICIES.entries.items() if one.origin != "training")
CLAIMED = ("random", "equispaced-one", "equispaced-two")
"""What the learned policy must beat."""
LEARNED = "greedy"
"""The policy that the page is about."""
ACCELERATIONS = (4.0, 8.0)
"""Columns over measured columns at which reconstructions are compared."""
CENTER_FRACTION = 0.125
"""Columns always measured then: the paper's at eightfold acceleration, and the policies' start."""
UNET, CLASSICAL, ZERO_FILLED = "U-Net, trained here", "total variation", "zero-filled"
"""What the comparison of reconstructions calls them."""
CONVOLUTION: Literal["onednn"] = "onednn"
"""Named, so that the same seed gives the same numbers whatever the machine has."""

ZOO_UNET = "knee-unet"
"""The reconstruction under all policies of the zoo."""
ZOO_BASELINES = ("random", "center-out")
SHOWN_BASELINE = "center-out"
"""The one of them in pictures; it is also what zero-filled images are measured by."""
ZOO_SIZE = 128


@final
@dataclass(frozen=True)
class ZooAcquisition:
    """A start, a number of steps, and the weights of the zoo that were trained for them."""

    name: str
    """As in benchmarks/leaderboard.json."""
    n_initial: int
    horizon: int
    policies: Mapping[str, str]
    """Weights by title. The others are compared with the first; the text is about the last."""

    @property
    def wanted(self) -> list[str]:
        """All that takes part, as `kscout evaluate --policy` takes it."""
        return [*ZOO_BASELINES, *(f"{title}={name}" for title, name in self.policies.items())]

    @property
    def reference(self) -> str:
        return next(iter(self.policies))

    @property
    def told(self) -> str:
        return list(self.policies)[-1]


ZOO_ACQUISITIONS = (
    ZooAcquisition("knee-base", 16, 16, {"fixed": "knee-base-fixed", "greedy": "knee-base-greedy"}),
)
"""One policy more is one row more; `python benchmarks/demo_oracles.py` stores what goes with it."""


@final
@dataclass(frozen=True)
class PaperSize:
    """What runs at the paper's size: weights of the zoo, on knees that they never saw."""

    acquisitions: tuple[ZooAcquisition, ...] = ZOO_ACQUISITIONS
    n_volumes: int = 6
    """Knees: the first ones of the test set that `kscout data make knee --paper` makes."""
    n_slices: int = 18
    """Per knee; that recipe's number, because another one would draw other images."""
    limit: int = 7
    """Slices looked at; seven of 108 lie at seven depths, six would lie at one."""
    n_trajectories: int = 2
    """Acquisitions per slice of `random`."""

    @property
    def making(self) -> MakeSettings:
        """The recipe of the zoo's test set, cut after a few knees."""
        volumes = (0, 0, self.n_volumes)
        return MakeSettings(kind="knee", volumes=volumes, slices=self.n_slices, size=ZOO_SIZE)

    def evaluation(self, one: ZooAcquisition, reference: str | None = None) -> EvaluationSetting:
        """Return how policies are run: trained ones take their best column."""
        plan = AcquisitionPlan(one.n_initial, one.horizon, self.n_trajectories, is_argmax=True)
        return EvaluationSetting(plan, seeds=(0,), limit=self.limit, reference=reference)


@final
@dataclass(frozen=True)
class DemoSettings:
    """The sizes of a demo. No setting was chosen on test slices."""

    volumes: tuple[int, int, int] = (64, 8, 12)
    """Knees for training, validation and test; many, because volumes are the statistical unit."""
    slices: int = 2
    """Slices per knee."""
    size: int = 64
    """Pixels along each side."""
    n_initial: int = 8
    horizon: int = 8
    unet_channels: int = 4
    unet_pools: int = 3
    unet_epochs: int = 30
    unet_learning_rate: float = 3e-3
    policy_channels: int = 4
    policy_hidden: int = 64
    policy_epochs: Mapping[str, int] = field(
        default_factory=lambda: dict(zip(METHODS, (5, 3), strict=True))
    )
    """By estimator; an epoch of the non-greedy one takes several times as long."""
    policy_learning_rate: float = 1e-3
    batch_size: int = 8
    n_trajectories: int = 4
    """Draws q, in training and in evaluation."""
    n_fixed_slices: int = 24
    """Training slices tried for each column of the fixed order."""
    seed: int = 0
    paper_size: PaperSize = field(default_factory=PaperSize)
    """What the zoo's policies run on; no seed changes it."""

    @property
    def making(self) -> MakeSettings:
        """The store of images."""
        return MakeSettings(
            kind="knee", volumes=self.volumes, slices=self.slices, size=self.size, seed=self.seed
        )

    @property
    def reconstructor(self) -> ReconstructorConfig:
        """The training of the U-Net, under the paper's masks."""
        arguments = {"n_channels": self.unet_channels, "n_pools": self.unet_pools}
        training = ReconstructorTraining(
            n_epochs=self.unet_epochs,
            batch_size=self.batch_size,
            learning_rate=self.unet_learning_rate,
            decay_epochs=(max(1, self.unet_epochs * 4 // 5),),
            convolution=CONVOLUTION,
            seed=self.seed,
        )
        return ReconstructorConfig(Component("unet", arguments), training)

    @property
    def network(self) -> Component:
        """The policy network, as in the paper but narrower."""
        arguments = {"n_channels": self.policy_channels, "n_hidden": self.policy_hidden}
        return Component("conv", arguments)

    def policy(self, method: str) -> PolicyConfig:
        """Return the training of a policy by one of the estimators."""
        training = {
            "method": method,
            "n_epochs": self.policy_epochs[method],
            "batch_size": self.batch_size,
            "n_trajectories": self.n_trajectories,
            "learning_rate": self.policy_learning_rate,
            "decay_epochs": (),
            "keep_epochs": (),
            "convolution": CONVOLUTION,
            "seed": self.seed,
        }
        acquisition = AcquisitionSetting(n_initial=self.n_initial, horizon=self.horizon)
        return PolicyConfig(self.network, acquisition, read(settings_class(method), training))

    @property
    def evaluation(self) -> EvaluationSetting:
        """How all policies are run over the test slices."""
        plan = AcquisitionPlan(self.n_initial, self.horizon, self.n_trajectories, seed=self.seed)
        return EvaluationSetting(plan, seeds=(self.seed,), n_fixed_slices=self.n_fixed_slices)


@final
class DemoFolder:
    """Where a demo keeps what."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store, self.unet, self.page = path / "knees", path / "unet", path / "index.html"
        self.runs = {method: path / method for method in METHODS}
        """The trained policies."""
        self.untrained = path / "untrained.safetensors"
        """The policy network as training found it."""
        self.evaluation = path / "evaluation"
        self.reconstructions = path / "reconstructions"
        self.comparison = Reconstructions(
            data=self.store, acceleration=ACCELERATIONS, center_fraction=CENTER_FRACTION
        )
        named = {ZERO_FILLED: "zero-filled", CLASSICAL: "total-variation", UNET: self.unet}
        self.compared = [f"{label}={name}" for label, name in named.items()]
        """Reconstructions, as `kscout analyze reconstructions` takes them."""
        self.reported = [self.unet, *self.runs.values(), self.evaluation, self.reconstructions]
        """The folders that the miniature's report is made of."""
        self.policies = [*map(str, [*self.runs.values(), self.untrained]), *BASELINES]
        """All that takes part in the evaluation, as `kscout evaluate --policy` takes it."""
        self.zoo_store = path / "paper-size" / "knees"

    def zoo(self, name: str, *, is_zero_filled: bool = False) -> Path:
        """Return the folder of the zoo's policies under one acquisition."""
        return self.zoo_store.with_name(f"{name}-zero-filled" if is_zero_filled else name)
