"""The Bayes-greedy policy, estimated: the mean gain over images that agree with what was measured.

No policy can know which image it measures; the best greedy one takes the column whose gain is
highest on average over the images that it may be. Training slices stand for these. With k-space y
of a slice, M what was measured, a(y) = |M y| and a weight W of each entry,

    d_j = sum over measured entries of W |y / a(y) - y_j / a(y_j)|^2,    w_j ~ exp(-d_j / width),

so that brightness plays no role. W = variance^-power over training slices: with power 0 strong
low frequencies decide, with 1 all entries count alike. Power and width are those with which, on
training slices and at each step of a fixed order, the chosen column gains most when weights come
from slices of other volumes alone (`fit_kernels`); infinite width is among them, which is a fixed
order. This policy can be run, so Bayes-greedy is at least as good as it, up to noise.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.core import Observation, Policy, Protocol, Reconstructor
from kscout.data.slices import SliceSet
from kscout.device import check_memory
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c
from kscout.physics.sampling import Initial, start_mask

POWERS = (0.0, 0.5, 1.0)
WIDTHS = (math.inf, 1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)
"""Tried by `fit_kernels`; widths in units of the mean distance of two slices."""


@final
@dataclass(frozen=True)
class Kernel:
    """How the agreement of two slices becomes a weight."""

    power: float = 0.0
    width: float = math.inf

    def weights(self, distance: Float[Tensor, "*lead slice"]) -> Float[Tensor, "*lead slice"]:
        """Return weights that sum to 1; an infinite distance has none."""
        scaled = -distance / self.width if math.isfinite(self.width) else -0.0 * distance
        return scaled.masked_fill(distance.isinf(), -torch.inf).softmax(dim=-1)


@final
class Pool:
    """Training slices, and how far what was measured of another slice is from theirs."""

    def __init__(self, slices: SliceSet) -> None:
        self.slices = slices
        # K-space, and twice as much while its variance is computed.
        check_memory(
            3 * 8 * len(slices) * math.prod(slices.shape),
            slices.device,
            f"comparing with {len(slices):,} training slices",
            "lower --pool",
        )
        self.kspace = slices.batch(torch.arange(len(slices), device=slices.index_device)).kspace
        norm = self.kspace.abs().square().sum(dim=(1, 2, 3), keepdim=True).sqrt()
        variance = (self.kspace / norm).var(dim=0, correction=0).clamp(min=1e-12)
        self.variance = variance / variance.mean()
        self._energies: dict[float, Tensor] = {}

    def __len__(self) -> int:
        return len(self.slices)

    def _energy(self, power: float) -> Float[Tensor, "slice col"]:
        """Return the weighted energy of each column of every slice."""
        if power not in self._energies:
            weighted = self.kspace.abs().square() * self.variance**-power
            self._energies[power] = weighted.sum(dim=(1, 2))
        return self._energies[power]

    def distances(
        self,
        kspace: Complex[Tensor, "state coil row col"],
        mask: Bool[Tensor, "state col"],
        power: float,
    ) -> Float[Tensor, "state slice"]:
        """Return d of each state from every slice; only columns of the mask are looked at."""
        kspace, known = kspace * mask[:, None, None, :], mask.float()
        weighted = kspace * self.variance**-power
        n_tiny = torch.finfo(torch.float32).tiny
        norm = kspace.abs().square().sum(dim=(1, 2, 3)).clamp(min=n_tiny)
        own = (weighted * kspace.conj()).real.sum(dim=(1, 2, 3)) / norm
        norms = (known @ self._energy(0.0).T).clamp(min=n_tiny)
        theirs = (known @ self._energy(power).T) / norms
        products = (weighted.flatten(1) @ self.kspace.flatten(1).conj().T).real
        return own[:, None] + theirs - 2 * products / (norm[:, None] * norms).sqrt()


@torch.no_grad()
def fit_kernels(
    slices: SliceSet,
    reconstructor: Reconstructor,
    *,
    initial: Initial,
    horizon: int,
    protocol: Protocol = "paper",
    batch_size: int = 16,
    on_step: Callable[[int], None] = lambda _: None,
) -> list[Kernel]:
    """Choose how agreement becomes a weight, for each step, by leaving out volumes.

    Args:
        slices: training slices, each acquired along the order that is best for all on average.
        reconstructor: frozen.
        initial: columns measured at the start, the same for all.
        horizon: steps.
        protocol: how images are un-normalized before they are scored.
        batch_size: slices at once.
        on_step: told the number of steps that are done.
    """
    pool, kernels = Pool(slices), []
    start = start_mask(initial, (1, slices.n_cols), slices.device)[0]
    mask = start.clone()
    numbers = torch.tensor([sorted(set(slices.volumes)).index(x) for x in slices.volumes])
    is_own = (numbers[:, None] == numbers).to(slices.device)
    for step in range(horizon):
        gains = torch.cat(
            [
                _gains(Simulator(batch, reconstructor, protocol=protocol), mask, start)
                for batch in slices.batches(batch_size)
            ]
        )
        kernels.append(_best_kernel(pool, mask, gains, is_own))
        mask[gains.mean(dim=0).masked_fill(mask, -torch.inf).argmax()] = True
        on_step(step + 1)
    return kernels


def _gains(
    simulator: Simulator, mask: Bool[Tensor, " col"], start: Bool[Tensor, " col"]
) -> Float[Tensor, "slice col"]:
    """Return what each column adds in every slice of a batch; 0 where it cannot be measured."""
    n_slices = len(simulator.batch)
    maps = simulator.calibrate(start.expand(n_slices, -1))
    n_measured = int(mask.sum())
    state = simulator.start_from(mask.expand(n_slices, -1), n_measured=n_measured, maps=maps)
    gains = simulator.score_every_column(state) - state.score[:, None]
    return gains.nan_to_num(neginf=0.0)


def _best_kernel(
    pool: Pool,
    mask: Bool[Tensor, " col"],
    gains: Float[Tensor, "slice col"],
    is_own: Bool[Tensor, "slice slice"],
) -> Kernel:
    """Return the kernel whose choice gains most on slices that it has not seen."""
    if is_own.all(dim=1).any():
        return Kernel()
    found: list[tuple[float, Kernel]] = []
    for power in POWERS:
        distance = pool.distances(pool.kspace, mask.expand(len(pool), -1), power)
        mean = float(distance[~is_own].mean())
        for width in WIDTHS:
            kernel = Kernel(power, width * mean)
            weights = kernel.weights(distance.masked_fill(is_own, torch.inf))
            chosen = (weights @ gains).masked_fill(mask, -torch.inf).argmax(dim=-1)
            found.append((float(gains.gather(-1, chosen[:, None]).mean()), kernel))
    return max(found, key=lambda pair: pair[0])[1]


@final
class PosteriorPolicy(Policy):
    """Takes the column with the highest mean gain over what the image may be.

    Args:
        pool: training slices.
        reconstructor: frozen.
        kernels: for each step; the last for all that follow.
        n_candidates: how many are tried at most; they are drawn by weight, evenly spaced.
        protocol: how images are un-normalized before they are scored.
        start: columns of the start, whose sensitivities acquisitions keep; not given: those of
            each state's mask.
    """

    is_stochastic = False
    needs_measurement = True
    needs_coils = True
    gain_units = (1.0,)

    def __init__(
        self,
        pool: Pool,
        reconstructor: Reconstructor,
        kernels: Sequence[Kernel],
        *,
        n_candidates: int = 64,
        protocol: Protocol = "paper",
        start: Bool[Tensor, " col"] | None = None,
    ) -> None:
        super().__init__()
        self.start = start
        self.pool, self.reconstructor, self.kernels = pool, reconstructor, list(kernels)
        self.n_candidates, self.protocol = n_candidates, protocol
        self.effective: dict[int, list[float]] = defaultdict(list)
        """By step, 1 / sum of squared weights of every state that was scored."""

    @torch.no_grad()
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        if seen.zero_filled is None:
            raise ConfigError(
                "a posterior is of measured k-space, and the observation has none; give zero_filled"
            )
        kspace = fft2c(seen.zero_filled) * seen.mask[:, None, None, :]
        steps = torch.as_tensor(seen.step).expand(len(seen.mask)).tolist()
        rows = [self._expected(seen, kspace, number, step) for number, step in enumerate(steps)]
        return torch.stack(rows)

    def _expected(
        self, seen: Observation, kspace: Complex[Tensor, "batch coil row col"], row: int, step: int
    ) -> Float[Tensor, " col"]:
        """Return the mean gain of each column in one state."""
        kernel, own = self.kernels[min(step, len(self.kernels) - 1)], slice(row, row + 1)
        distance = self.pool.distances(kspace[own], seen.mask[own], kernel.power)
        weights = kernel.weights(distance)[0]
        self.effective[step].append(1 / float(weights.square().sum()))
        counts = evenly_drawn(weights, self.n_candidates)
        index = counts.nonzero()[:, 0]
        batch = self.pool.slices.batch(index.to(self.pool.slices.index_device))
        simulator = Simulator(batch, self.reconstructor, protocol=self.protocol)
        mask = seen.mask[row]
        start = mask if self.start is None else self.start
        return counts[index] @ _gains(simulator, mask, start) / counts.sum()


def evenly_drawn(weights: Float[Tensor, " slice"], n_draws: int) -> Float[Tensor, " slice"]:
    """Return how often each is drawn when draws stand evenly on the line of summed weights.

    Whatever the draws, no count differs from its expectation by 1 or more.
    """
    ends = weights.double().cumsum(dim=0)
    points = (torch.arange(n_draws, device=weights.device) + 0.5) / n_draws * ends[-1]
    places = torch.searchsorted(ends, points).clamp(max=len(weights) - 1)
    return torch.bincount(places, minlength=len(weights)).float()


def average_effective(policy: PosteriorPolicy) -> dict[int, float]:
    """Return the mean effective number of slices by step."""
    return {step: sum(values) / len(values) for step, values in policy.effective.items()}


__all__ = ["Kernel", "Pool", "PosteriorPolicy", "average_effective", "evenly_drawn", "fit_kernels"]
