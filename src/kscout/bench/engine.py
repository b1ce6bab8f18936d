"""What the benchmarks run: slices, the paper's networks untrained, and the engine around them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.policies.conv import ConvPolicy
from kscout.randomness import keyed_generator
from kscout.reconstruction.precision import with_precision
from kscout.reconstruction.unet import UNet
from kscout.training.convolution import choose_convolution, convolution, to_layout
from kscout.training.policy_gradient import Estimate, greedy_gradients, non_greedy_gradients


def sample_images(n_slices: int, size: int) -> Float[Tensor, "slice row col"]:
    """Return smooth, positive images; no result here depends on what they show."""
    draws = torch.rand(n_slices, 1, 9, 9, generator=keyed_generator("bench", size))
    smooth = torch.nn.functional.interpolate(draws, size=(size, size), mode="bicubic")
    return smooth[:, 0].abs()


@final
@dataclass(frozen=True)
class Engine:
    """One image size on one device: the paper's U-Net and policy with random weights.

    An untrained policy draws nearly uniformly, so few of a state's columns repeat and the savings
    on repeated columns do not flatter.
    """

    size: int
    slices: SliceSet
    unet: UNet
    frozen: Reconstructor
    """The U-Net as trainings use it."""
    backend: str
    policy: Policy

    @classmethod
    def build(
        cls,
        size: int,
        n_slices: int,
        device: torch.device,
        *,
        precision: str = "auto",
        backend: str = "auto",
        unet: UNet | None = None,
    ) -> "Engine":
        """Choose convolutions by measurement, as a training does, and freeze the U-Net."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            unet = UNet() if unet is None else unet
            policy = ConvPolicy(n_cols=size)
        slices = SliceSet.from_images(sample_images(n_slices, size), ["bench"] * n_slices)
        slices = slices.to(device)
        unet = unet.to(device).eval().requires_grad_(False)
        frozen = with_precision(unet, precision, n_rows=size, n_cols=size, device=device)
        if device.type != "cpu":
            backend = "onednn"
        elif isinstance(frozen.network, torch.nn.Module):
            sample = slices.images[:8, None]
            backend = choose_convolution(backend, frozen.network, sample, trains=False)
            to_layout(frozen.network, backend)
        return cls(size, slices, unet, frozen, backend, policy.to(device))

    @property
    def batch(self) -> SliceBatch:
        return self.slices.batch(torch.arange(len(self.slices)))

    @contextmanager
    def ready(self) -> Iterator[Simulator]:
        """Yield a simulator of all slices, with the engine's convolutions switched on."""
        with convolution(self.backend):
            yield Simulator(self.batch, self.frozen)

    def draws(
        self, horizon: int, q: int
    ) -> tuple[Float[Tensor, "slice step q"], Int[Tensor, " step"]]:
        """Return what decides the columns drawn and the one followed."""
        generator = keyed_generator("bench draws", self.size)
        uniforms = torch.rand(len(self.slices), horizon, q, generator=generator)
        followed = torch.randint(q, (horizon,), generator=generator)
        return uniforms.to(self.slices.device), followed.to(self.slices.device)

    def greedy(self, horizon: int, q: int) -> Estimate:
        """Add the greedy estimator's gradients of all slices, from an eighth of the columns."""
        uniforms, followed = self.draws(horizon, q)
        self.policy.zero_grad()
        with self.ready() as simulator:
            return greedy_gradients(
                [self.policy],
                simulator,
                n_initial=self.size // 8,
                uniforms=uniforms,
                followed=followed[:, None],
            )

    def non_greedy(self, horizon: int, q: int, gamma: float = 0.9) -> Estimate:
        """Likewise, the non-greedy estimator's."""
        uniforms, _ = self.draws(horizon, q)
        self.policy.zero_grad()
        with self.ready() as simulator:
            return non_greedy_gradients(
                [self.policy],
                simulator,
                n_initial=self.size // 8,
                uniforms=uniforms,
                gammas=[gamma],
            )
