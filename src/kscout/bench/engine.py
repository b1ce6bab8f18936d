"""What the benchmarks run: the objects of a training, on knees, with policies still untrained.

`TrainingBatch` goes through the estimator, as trainings do: on CUDA 16-bit networks and one graph
per batch, on a CPU eager code with the convolutions that a training would choose.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.assemble import make_policy
from kscout.config import PolicyConfig, estimators_with, read
from kscout.config.policy import FrozenPrecision
from kscout.core import Reconstructor, SliceBatch
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS
from kscout.policies.conv import ConvPolicy
from kscout.reconstruction import load
from kscout.reconstruction.unet import UNet
from kscout.training.convolution import choose_convolution, convolution, to_layout
from kscout.training.estimators.gradient import GradientEstimator
from kscout.training.estimators.greedy import greedy_gradients
from kscout.training.estimators.recording import Estimate
from kscout.training.trainee import Trainee

RECONSTRUCTOR = "knee-unet"
"""Trained on knees of 128x128 pixels; it takes other sizes too."""

LARGEST_SIZE = 320
_SMALLEST_KNEE = 64


@final
@dataclass(frozen=True)
class Workload:
    """The shape of one batch, of all seeds together."""

    n_slices: int
    """Of each seed."""
    horizon: int
    q: int
    method: str = "greedy"
    n_seeds: int = 1

    @property
    def n_reconstructions(self) -> int:
        """Candidates scored, repeated draws counted each time."""
        return self.n_seeds * self.n_slices * (1 + self.horizon * self.q)


PAPER = Workload(n_slices=16, horizon=16, q=8)
"""A batch of the paper's knee-base training."""


def knee_images(n_slices: int, size: int) -> Float[Tensor, "slice row col"]:
    """Return procedural knees that no network of the zoo was trained on, two slices of each."""
    drawn = max(size, _SMALLEST_KNEE)
    volumes = [
        draw_knee_volume(seed=77, volume=number, n_slices=2, size=drawn).stored
        for number in range((n_slices + 1) // 2)
    ]
    images = torch.cat([torch.from_numpy(volume) for volume in volumes])[:n_slices]
    edge = (drawn - size) // 2
    return images[:, edge : edge + size, edge : edge + size].contiguous()


def trained_unet(reconstructor: str = RECONSTRUCTOR) -> UNet:
    """Load the network that all benchmarks run."""
    found = load(reconstructor)
    if not isinstance(found, UNet):
        raise ConfigError(
            f"{reconstructor} is a {type(found).__name__}; the benchmarks run the paper's U-Net"
        )
    return found


@final
@dataclass(frozen=True)
class Engine:
    """Knees of one size on one device, and the U-Net as a training there has it."""

    size: int
    slices: SliceSet
    unet: UNet
    """In 32 bit, as it was loaded."""
    frozen: Reconstructor
    backend: str
    wanted: FrozenPrecision = "auto"
    """The precision that was asked for, of U-Net and policies."""

    @classmethod
    def build(
        cls,
        size: int,
        n_slices: int,
        device: torch.device,
        *,
        precision: FrozenPrecision = "auto",
        backend: str = "auto",
        unet: UNet | None = None,
    ) -> "Engine":
        """Freeze the U-Net and choose convolutions as a training does.

        Args:
            size: rows and columns of the images.
            n_slices: knees to draw.
            device: where all of it runs.
            precision: of the frozen U-Net and of policies; `auto` is a training's default.
            backend: of convolutions on a CPU.
            unet: the network; by default the zoo's.
        """
        unet = (trained_unet() if unet is None else unet).to(device).eval().requires_grad_(False)
        volumes = [str(number // 2) for number in range(n_slices)]
        slices = SliceSet.from_images(knee_images(n_slices, size).to(device), volumes)
        frozen = unet.frozen(precision=precision, n_rows=size, n_cols=size, device=device)
        backend = choose_convolution(
            backend if device.type == "cpu" else "auto", device, trains=False
        )
        to_layout(frozen, backend)
        return cls(size, slices, unet, frozen, backend, precision)

    @property
    def device(self) -> torch.device:
        return self.slices.device

    @property
    def arithmetic(self) -> str:
        """What runs, in words."""
        if self.frozen.precision == "fp16":
            return "fp16 fused"
        if self.device.type == "cpu":
            return f"fp32, {self.backend}"
        return "fp32, TF32 convolutions" if torch.backends.cudnn.allow_tf32 else "fp32"

    @property
    def batch(self) -> SliceBatch:
        return self.slices.batch(torch.arange(len(self.slices)))

    def ready_convolutions(self) -> AbstractContextManager[None]:
        """Switch the engine's convolutions on."""
        return convolution(self.backend)

    @contextmanager
    def ready(self) -> Iterator[Simulator]:
        """Yield a simulator of all slices, with the engine's convolutions switched on."""
        with self.ready_convolutions():
            yield Simulator(self.batch, self.frozen)


@final
class TrainingBatch:
    """Batches of a training: their gradients alone, or whole updates.

    Policies are untrained, so they draw nearly uniformly and the savings on repeated columns do not
    flatter.

    Args:
        engine: slices and U-Net; where it has too few slices they are taken again.
        work: the shape of a batch.
        n_updates: batches in one pass.
    """

    def __init__(self, engine: Engine, work: Workload, *, n_updates: int = 1) -> None:
        self.engine, self.work = engine, work
        configs = [_config(engine, work, seed) for seed in range(work.n_seeds)]
        sizes = {"n_cols": engine.size, "n_rows": engine.size}
        policies = [
            make_policy(config.policy, seed=config.training.seed, **sizes).to(engine.device)
            for config in configs
        ]
        trainees = [Trainee.resume(*pair) for pair in zip(policies, configs, strict=True)]
        index = torch.arange(work.n_slices * n_updates) % len(engine.slices)
        estimator = ESTIMATORS.resolve(work.method)
        self.estimator: GradientEstimator = estimator(
            trainees, engine.slices.subset(index), engine.frozen
        )
        self.drawn = [self.estimator.draws_of(config, 1) for config in configs]

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The slices of a greedy batch, the numbers that decide its draws, and which it follows."""
        index = [own.order[: self.work.n_slices] for own in self.drawn]
        uniforms = torch.cat([own.draws.per_slice[0][: self.work.n_slices] for own in self.drawn])
        followed = torch.stack([own.draws.per_batch[0][0] for own in self.drawn], dim=-1)
        return torch.cat(index), uniforms, followed

    @property
    def policy(self) -> ConvPolicy:
        """The first seed's."""
        policy = self.estimator.trainees[0].module
        assert isinstance(policy, ConvPolicy)
        return policy

    def gradients(self) -> Float[Tensor, " policy"]:
        """Leave the first batch's gradients in the policies; on CUDA a replay after one call."""
        with self.engine.ready_convolutions():
            return self.estimator.batch_gradients(self.drawn, 0) / self.work.n_slices

    def updates(self) -> list[float]:
        """Pass over all slices as a training does: draws, gradients and optimizer steps."""
        with self.engine.ready_convolutions():
            results = self.estimator.train_epoch(1, lambda _: None)
        return [result.scores["train_ssim"] for result in results]

    def estimate(self, replay: Int[Tensor, "step state q"] | None = None) -> Estimate:
        """Compute the greedy gradients eagerly and return all that led to them.

        Args:
            replay: columns to take instead of drawing.
        """
        index, uniforms, followed = self.inputs
        estimator, config = self.estimator, self.estimator.trainees[0].config
        for trainee in estimator.trainees:
            trainee.optimizer.zero_grad()
        with self.engine.ready_convolutions():
            for view in estimator.views:
                view.refresh()
            return greedy_gradients(
                estimator.views,
                Simulator(estimator.slices.batch(index), estimator.reconstructor),
                n_initial=config.acquisition.n_initial,
                uniforms=uniforms,
                followed=followed,
                replay=replay,
            )


def release(device: torch.device) -> None:
    """Free the memory of graphs that are out of use but lie in reference cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _config(engine: Engine, work: Workload, seed: int) -> PolicyConfig:
    own = {"gamma": 0.9} if work.method in estimators_with("gamma") else {}
    training = {
        "method": work.method,
        "batch_size": work.n_slices,
        "n_trajectories": work.q,
        # An update costs the same, and the policy stays untrained.
        "learning_rate": 1e-12,
        "precision": engine.wanted,
        "seed": seed,
        **own,
    }
    acquisition = {"n_initial": engine.size // 8, "horizon": work.horizon}
    return read(PolicyConfig, {"acquisition": acquisition, "training": training})
