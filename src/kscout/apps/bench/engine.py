"""Objects of the benchmarks: those of a training, on knees, with an untrained policy.

`TrainingBatch` uses the estimator of a training: on CUDA 16-bit networks and one graph per batch,
on a CPU eager code with the convolutions that a training would select.
"""

import gc
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.assemble import make_policy
from kscout.config import PolicyConfig, read
from kscout.core import Reconstructor
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.policies.conv import ConvPolicy
from kscout.reconstruction import load
from kscout.reconstruction.unet import UNet
from kscout.training.algorithm import Learner
from kscout.training.algorithms.greedy import Greedy, greedy_gradients
from kscout.training.algorithms.recording import Estimate
from kscout.training.convolution import choose_convolution, convolution, to_layout

LARGEST_SIZE = 320
_SMALLEST_KNEE = 64


def knee_images(n_slices: int, size: int) -> Float[Tensor, "slice row col"]:
    """Return generated knees on which no network of the zoo was trained, two slices of each."""
    drawn = max(size, _SMALLEST_KNEE)
    volumes = [
        draw_knee_volume(seed=77, volume=number, n_slices=2, size=drawn).stored
        for number in range((n_slices + 1) // 2)
    ]
    images = torch.cat([torch.from_numpy(volume) for volume in volumes])[:n_slices]
    edge = (drawn - size) // 2
    return images[:, edge : edge + size, edge : edge + size].contiguous()


@final
@dataclass(frozen=True)
class Engine:
    """Knees of one size on one device, and the U-Net in the form of a training."""

    size: int
    slices: SliceSet
    unet: UNet
    """In 32 bit, as it was loaded."""
    frozen: Reconstructor
    backend: str

    @classmethod
    def build(cls, size: int, n_slices: int, device: torch.device) -> "Engine":
        """Freeze the U-Net and select convolutions as a training does."""
        unet = load("knee-unet").to(device).eval().requires_grad_(False)
        assert isinstance(unet, UNet)
        volumes = [str(number // 2) for number in range(n_slices)]
        slices = SliceSet.from_images(knee_images(n_slices, size).to(device), volumes)
        frozen = unet.frozen(precision="auto", n_rows=size, n_cols=size, device=device)
        backend = choose_convolution("auto", device, trains=False)
        to_layout(frozen, backend)
        return cls(size, slices, unet, frozen, backend)

    @property
    def device(self) -> torch.device:
        return self.slices.device

    @property
    def arithmetic(self) -> str:
        """Precision and convolutions, as a text."""
        if self.frozen.precision == "fp16":
            return "fp16 fused"
        if self.device.type == "cpu":
            return f"fp32, {self.backend}"
        return "fp32, TF32 convolutions" if torch.backends.cudnn.allow_tf32 else "fp32"

    def ready_convolutions(self) -> AbstractContextManager[None]:
        """Switch the engine's convolutions on."""
        return convolution(self.backend)


@final
class TrainingBatch:
    """The gradients of one batch of a greedy training.

    The policy is untrained, so it samples nearly uniformly, and few repeated columns are
    skipped.
    """

    def __init__(self, engine: Engine, *, horizon: int, q: int) -> None:
        self.engine = engine
        batch_size = len(engine.slices)
        training = {"method": "greedy", "batch_size": batch_size, "n_trajectories": q}
        acquisition = {"n_initial": engine.size // 8, "horizon": horizon}
        config = read(PolicyConfig, {"acquisition": acquisition, "training": training})
        policy = make_policy(config.policy, seed=0, n_cols=engine.size, n_rows=engine.size)
        learner = Learner.of(policy.to(engine.device), config)
        assert isinstance(policy, ConvPolicy)
        self.policy = policy
        self.estimator = Greedy(learner, engine.slices, engine.frozen)
        self.drawn = self.estimator.draws_of(1)

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The slices, the random numbers for the samples, and the index of the followed sample."""
        drawn = self.drawn
        return drawn.order, drawn.per_slice["uniforms"], drawn.per_batch["followed"][0]

    def gradients(self) -> Float[Tensor, ""]:
        """Compute the batch's gradients into the policy; on CUDA by a graph after one call."""
        with self.engine.ready_convolutions():
            return self.estimator.batch_gradients(self.drawn, 0)

    def estimate(self, replay: Int[Tensor, "step state q"] | None = None) -> Estimate:
        """Compute the gradients eagerly and return the estimate with all intermediate values."""
        index, uniforms, followed = self.inputs
        estimator = self.estimator
        estimator.learner.optimizer.zero_grad()
        with self.engine.ready_convolutions():
            estimator.view.refresh()
            return greedy_gradients(
                estimator.view,
                Simulator(estimator.slices.batch(index), estimator.reconstructor),
                n_initial=self.engine.size // 8,
                uniforms=uniforms,
                followed=followed,
                replay=replay,
            )


def release(device: torch.device) -> None:
    """Free the memory of unused graphs, which lie in reference cycles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def wait(device: torch.device) -> float:
    """Wait until the device is idle and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
