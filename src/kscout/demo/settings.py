"""What the demo runs and where it keeps it: learning is real, and two CPU cores take minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, final

import torch

from kscout.config import (
    AcquisitionSetting,
    Component,
    JointConfig,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
    read,
    settings_class,
)
from kscout.config.reconstructor import Convolution
from kscout.data.making import MakeSettings
from kscout.evaluation.analyses.reconstructions import Reconstructions
from kscout.evaluation.compare import EvaluationSetting
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.names import SAMPLERS
from kscout.training.convolution import choose_convolution

LEARNED, REFERENCE = "dense", "fixed"
"""The policy that the page is about, by the estimator that trains it, and what it must beat."""
BASELINES = ("random", "equispaced-two", "center-out", REFERENCE)
"""What runs on all test slices beside it."""
ORACLES = ("oracle",)
"""What runs on few of them: it tries every column at every step."""
JOINT_SAMPLERS = (REFERENCE, LEARNED)
"""What chooses columns where the reconstruction learns, too, at equal updates."""
ACCELERATIONS = (4.0, 8.0)
"""Columns over measured columns at which reconstructions are compared."""
N_COMPARED = 24
"""Test slices that they are compared on."""
UNET, CLASSICAL, ZERO_FILLED = "U-Net, trained here", "total variation", "zero-filled"
"""What the comparison of reconstructions calls them."""

CONVOLUTION = cast(Convolution, choose_convolution("auto", torch.device("cpu"), trains=True))
"""What is fastest for a network this narrow, which compiled kernels do not serve."""

ZOO_UNET = "knee-unet"
"""The reconstruction under all policies of the zoo."""
ZOO_BASELINES = ("random", "center-out")
SHOWN_BASELINE = "center-out"
"""The one of them in pictures; it is also what zero-filled images are measured by."""
ZOO_SIZE = 128
_UNSEEN_SEED = 1000


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
    def pair(self) -> list[str]:
        """The policy that the text is about, and what it is compared with."""
        return [f"{title}={self.policies[title]}" for title in (self.reference, self.told)]

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
    ZooAcquisition(
        "knee-base",
        16,
        16,
        {"fixed": "knee-base-fixed", "greedy": "knee-base-greedy", "column": "knee-base-column"},
    ),
)
"""One policy more is one row more; `python benchmarks/demo_oracles.py` stores what goes with it."""
QUICK_ACQUISITIONS = (replace(ZOO_ACQUISITIONS[0], name="knee-16-2", horizon=2),)
"""The same weights, stopped after two columns."""


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
    n_unseen: int = 96
    """Further knees, drawn by the demo's seed, that the page's first sentence is about: so many
    that a lead of a thousandth can be told from chance."""
    n_unseen_slices: int = 2
    """Slices of each."""

    @property
    def making(self) -> MakeSettings:
        """The recipe of the zoo's test set, cut after a few knees."""
        volumes = (0, 0, self.n_volumes)
        return MakeSettings(kind="knee", volumes=volumes, slices=self.n_slices, size=ZOO_SIZE)

    def unseen(self, seed: int) -> MakeSettings:
        """The knees of the first sentence; no training of the zoo drew any by such a seed."""
        return MakeSettings(
            kind="knee",
            volumes=(0, 0, self.n_unseen),
            slices=self.n_unseen_slices,
            size=ZOO_SIZE,
            seed=_UNSEEN_SEED + seed,
        )

    def evaluation(self, one: ZooAcquisition, reference: str | None = None) -> EvaluationSetting:
        """Return how policies are run: trained ones take their best column."""
        plan = AcquisitionPlan(one.n_initial, one.horizon, self.n_trajectories, is_argmax=True)
        return EvaluationSetting(plan, seeds=(0,), limit=self.limit, reference=reference)

    @property
    def lead(self) -> EvaluationSetting:
        """How the last of the policies is run beside the first, on all unseen knees."""
        one = self.acquisitions[0]
        plan = AcquisitionPlan(one.n_initial, one.horizon, 1, is_argmax=True)
        return EvaluationSetting(plan, seeds=(0,), reference=one.reference, n_examples=0)


@final
@dataclass(frozen=True)
class DemoSettings:
    """The sizes of a demo."""

    volumes: tuple[int, int, int] = (192, 8, 64)
    """Knees for training, validation and test; many, because volumes are the statistical unit."""
    slices: int = 2
    """Slices per knee."""
    size: int = 64
    """Pixels along each side."""
    n_initial: int = 4
    horizon: int = 4
    unet_channels: int = 4
    unet_pools: int = 3
    unet_epochs: int = 7
    unet_learning_rate: float = 3e-3
    network: Mapping[str, Any] = field(
        default_factory=lambda: {
            "width": 48,
            "n_layers": 2,
            "n_heads": 4,
            "channels": [8, 16, 16],
            "image_channels": [8, 16, 24, 32],
        }
    )
    """Sizes of the network `column`, which looks at k-space."""
    policy_epochs: int = 1
    policy_learning_rate: float = 2e-3
    n_repeats: int = 1
    """Optimizer steps on remembered labels after each batch: trying columns is what costs."""
    n_best: int = 2
    n_random: int = 2
    """Columns tried at each state: the best by score, and others. Slopes label all that are not."""
    n_joint_tried: int = 4
    """As many of both where the U-Net learns, too, and only tried columns are labels."""
    n_prior_slices: int = 16
    """Training slices on which the policy's first guess, mean gains, is measured."""
    batch_size: int = 8
    n_updates: int = 240
    """Further optimizer steps of the U-Net where it learns together with what chooses columns."""
    n_fixed_slices: int = 32
    """Training slices tried for each column of the fixed order."""
    n_oracle_slices: int = 16
    """Test slices that the oracle runs on."""
    seed: int = 0
    paper_size: PaperSize = field(default_factory=PaperSize)
    """What the zoo's policies run on; no seed changes it."""
    is_quick: bool = False
    """Whether sizes are so small that nothing is shown but that every part runs."""

    @classmethod
    def quick(cls) -> "DemoSettings":
        """Return sizes that take seconds: every part runs, and nothing is learned."""
        return cls(
            volumes=(4, 2, 4),
            n_initial=5,
            horizon=2,
            unet_epochs=1,
            n_prior_slices=2,
            n_updates=8,
            n_fixed_slices=2,
            n_oracle_slices=3,
            is_quick=True,
            paper_size=PaperSize(
                n_volumes=2, n_slices=2, limit=2, n_unseen=3, acquisitions=QUICK_ACQUISITIONS
            ),
        )

    @property
    def making(self) -> MakeSettings:
        """The store of images."""
        return MakeSettings(
            kind="knee",
            volumes=self.volumes,
            slices=self.slices,
            size=self.size,
            seed=self.seed,
        )

    @property
    def acquisition(self) -> AcquisitionSetting:
        return AcquisitionSetting(n_initial=self.n_initial, horizon=self.horizon)

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
    def policy(self) -> PolicyConfig:
        """The training of the policy, on a U-Net that stays as it is."""
        training = {
            "method": LEARNED,
            "n_epochs": self.policy_epochs,
            "learning_rate": self.policy_learning_rate,
            "n_warm": 8,
            "average": 0.95,
            "n_repeats": self.n_repeats,
            "n_repeated": 4 * self.batch_size,
            "n_best": self.n_best,
            "n_random": self.n_random,
            **self._common,
        }
        network = Component("column", dict(self.network))
        return PolicyConfig(network, self.acquisition, read(settings_class(LEARNED), training))

    def joint(self, sampler: str) -> JointConfig:
        """Return the training of the U-Net together with one of the samplers."""
        training = {
            "method": sampler,
            "n_updates": self.n_updates,
            "learning_rate": self.unet_learning_rate / 3,
            "n_warm": 8,
            "n_epochs": 2,
            "n_pool": 512,
            "n_refill": 64,
            "refill_every": 40,
            **self._common,
        }
        arguments: dict[str, Any] = {}
        if sampler == REFERENCE:
            training["n_fit_slices"] = training.pop("n_prior_slices")
        else:
            arguments = dict(self.network)
            training |= {
                "sampler_every": 6,
                "sampler_batch": self.batch_size,
                "sampler_rate": self.policy_learning_rate,
                "sampler_average": 0.9,
                "n_repeats": 0,
                "n_best": self.n_joint_tried,
                "n_tried_at_random": self.n_joint_tried,
            }
        preset = JointConfig.of(sampler)
        return replace(
            preset,
            policy=replace(preset.policy, arguments=arguments),
            acquisition=self.acquisition,
            training=read(settings_class(sampler, SAMPLERS), training),
        )

    @property
    def _common(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "n_prior_slices": self.n_prior_slices,
            "convolution": CONVOLUTION,
            "seed": self.seed,
        }

    @property
    def evaluation(self) -> EvaluationSetting:
        """How policies are run over all test slices."""
        plan = AcquisitionPlan(self.n_initial, self.horizon, n_trajectories=2, seed=self.seed)
        return EvaluationSetting(
            plan, seeds=(self.seed,), reference=REFERENCE, n_fixed_slices=self.n_fixed_slices
        )

    @property
    def headroom(self) -> EvaluationSetting:
        """How they are run on the few slices that the oracle sees."""
        return replace(self.evaluation, limit=self.n_oracle_slices)


@final
class DemoFolder:
    """Where a demo keeps what."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store, self.unet, self.page = path / "knees", path / "unet", path / "index.html"
        self.policy = path / LEARNED
        """The policy that was trained on the frozen U-Net."""
        self.pairs = {sampler: path / f"joint-{sampler}" for sampler in JOINT_SAMPLERS}
        """U-Nets that learned together with what chooses their columns."""
        self.evaluation, self.headroom = path / "evaluation", path / "headroom"
        self.joint = {sampler: path / f"evaluation-joint-{sampler}" for sampler in JOINT_SAMPLERS}
        """The pairs on all test slices."""
        self.reconstructions = path / "reconstructions"
        self.comparison = Reconstructions(
            data=self.store, acceleration=ACCELERATIONS, limit=N_COMPARED
        )
        named = {ZERO_FILLED: "zero-filled", CLASSICAL: "total-variation", UNET: self.unet}
        self.compared = [f"{label}={name}" for label, name in named.items()]
        """Reconstructions, as `kscout analyze reconstructions` takes them."""
        self.runs = [self.unet, self.policy, *self.pairs.values()]
        self.policies = [str(self.policy), *BASELINES]
        """All that runs on all test slices, as `kscout evaluate --policy` takes it."""
        self.bounded = [str(self.policy), REFERENCE, "random", *ORACLES]
        """What the player shows."""
        self.zoo_store = path / "paper-size" / "knees"
        self.unseen = self.zoo_store.with_name("unseen-knees")
        """The knees of the first sentence."""
        self.lead = self.zoo_store.with_name("lead")
        """The zoo's policy beside the fixed order on them."""

    def paired(self, sampler: str) -> list[str]:
        """Return what is evaluated on a jointly trained U-Net: its own sampler by its name."""
        own = f"{sampler}={self.pairs[sampler]}"
        return [own] if sampler == REFERENCE else [own, REFERENCE]

    def zoo(self, name: str, *, is_zero_filled: bool = False) -> Path:
        """Return the folder of the zoo's policies under one acquisition."""
        return self.zoo_store.with_name(f"{name}-zero-filled" if is_zero_filled else name)
