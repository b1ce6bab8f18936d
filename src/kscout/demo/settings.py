"""What the demo runs: sizes at which learning is real and two CPU cores take minutes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

from kscout.config import (
    AcquisitionSetting,
    Component,
    PolicyConfig,
    PolicyTraining,
    ReconstructorConfig,
    ReconstructorTraining,
)
from kscout.data.generate import MakeSettings
from kscout.demo.paper_size import PaperSize
from kscout.evaluation.compare import EvaluationSetting
from kscout.evaluation.trajectories import AcquisitionPlan

METHODS = ("greedy", "ngreedy")
"""Estimators that a policy is trained by; also the names of their runs."""
BASELINES = (
    "random",
    "variable-density",
    "equispaced-one",
    "equispaced-two",
    "center-out",
    "fixed",
    "na-oracle",
    "oracle",
    "spectral-oracle",
)
CLAIMED = ("random", "equispaced-one", "equispaced-two")
"""What the learned policy must beat."""
ACCELERATIONS = (4.0, 8.0)
"""Columns over measured columns at which reconstructions are compared."""
CONVOLUTION: Literal["onednn"] = "onednn"
"""Not measured, so that the same seed gives the same numbers however busy the machine is."""
INPUTS = "inputs.json"
"""In the folder of an evaluation: what it was made from."""
REFERENCE = "greedy"
"""The policy that all others are compared with, slice by slice."""


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
    policy_epochs: tuple[int, int] = (5, 3)
    """Greedy and non-greedy; an epoch of the latter takes several times as long."""
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
        """Return the training of a policy by one of the two estimators."""
        training = PolicyTraining(
            method="greedy" if method == "greedy" else "ngreedy",
            n_epochs=self.policy_epochs[METHODS.index(method)],
            batch_size=self.batch_size,
            n_trajectories=self.n_trajectories,
            learning_rate=self.policy_learning_rate,
            decay_epochs=(),
            keep_epochs=(),
            convolution=CONVOLUTION,
            seed=self.seed,
        )
        acquisition = AcquisitionSetting(n_initial=self.n_initial, horizon=self.horizon)
        return PolicyConfig(self.network, acquisition, training)

    @property
    def evaluation(self) -> EvaluationSetting:
        """How all policies are run over the test slices."""
        plan = AcquisitionPlan(
            n_initial=self.n_initial,
            horizon=self.horizon,
            n_trajectories=self.n_trajectories,
            seed=self.seed,
        )
        return EvaluationSetting(
            plan,
            seeds=(self.seed,),
            reference=REFERENCE,
            n_fixed_slices=self.n_fixed_slices,
        )


@final
@dataclass(frozen=True)
class DemoFolder:
    """Where a demo keeps what."""

    path: Path

    @property
    def store(self) -> Path:
        return self.path / "knees"

    @property
    def unet(self) -> Path:
        return self.path / "unet"

    def policy(self, method: str) -> Path:
        """Return the run folder of a trained policy."""
        return self.path / method

    @property
    def untrained(self) -> Path:
        """The policy network as training found it."""
        return self.path / "untrained.safetensors"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation"

    @property
    def inputs(self) -> Path:
        """What the evaluation was made from."""
        return self.evaluation / INPUTS

    @property
    def acquisition(self) -> Path:
        """One slice, step by step."""
        return self.evaluation / "acquisition.npz"

    @property
    def page(self) -> Path:
        return self.path / "index.html"

    @property
    def reported(self) -> list[Path]:
        """The folders that the miniature's report is made of."""
        return [self.unet, *(self.policy(method) for method in METHODS), self.evaluation]

    @property
    def paper_store(self) -> Path:
        """Knees at the paper's size."""
        return self.path / "paper-size" / "knees"

    def paper_evaluation(self, name: str, *, is_zero_filled: bool = False) -> Path:
        """Return the folder of the zoo's policies under one acquisition."""
        return self.path / "paper-size" / (f"{name}-zero-filled" if is_zero_filled else name)

    @property
    def policies(self) -> list[str]:
        """All that takes part in the evaluation, as `kscout evaluate --policy` takes it."""
        trained = [str(self.policy(method)) for method in METHODS]
        return [*trained, str(self.untrained), *BASELINES]
