"""A policy that tries columns on samples from the posterior of the image given the measurement.

A network computes an image from the measurement and noise: each noise gives another sample. All
samples agree with the measurement, and differ as much as the ground truth may differ from them.
For each sample x_i every column c is measured, reconstructed and scored, as the oracle does with
the ground truth; the column with the highest mean gain (1/n) sum_i gain(c; x_i) is acquired. With
exact samples this is the best policy with a look-ahead of one column.

The sampler does not depend on reconstruction and metric, to which the policy is bound when an
acquisition begins (`Policy.bind`), so the same weights work with all of them. Images are real, as
in datasets of images: their k-space satisfies y[-k] = conj(y[k]), so each measured column also
determines the opposite one.
"""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from kscout.core import Context, Observation, Policy, SliceBatch
from kscout.device import at_most_a_quarter
from kscout.errors import ConfigError
from kscout.layers import UNetNetwork, peak_bytes
from kscout.physics.fourier import completed, fft2c, ifft2c
from kscout.physics.normalization import magnitude, statistics
from kscout.physics.sampling import apply_mask

N_NOISES = 64
"""Number of noise images."""
_LEAST_STD = 1e-11
"""Prevents a division by zero for a constant image."""
_N_INPUTS = 3
"""Two images of the measurement, and noise."""
_MEMORY_LIMIT = {"cpu": 64 * 2**20, "cuda": 4 * 2**30}
"""Memory in bytes for images sampled at once, by kind of device."""

Network = Callable[[Float[Tensor, "image input row col"]], Float[Tensor, "image 1 row col"]]


class PosteriorSampler(nn.Module):
    """Samples images that agree with a measurement."""

    range_per_std: Float[Tensor, ""]
    """Data range over standard deviation; one slice does not determine its volume's."""

    def __init__(self, *, n_channels: int, n_pools: int, slope: float) -> None:
        super().__init__()
        if n_channels < 2 or n_pools < 1:
            raise ConfigError(
                f"n_channels is {n_channels} and n_pools {n_pools}; use at least 2 and 1"
            )
        self.n_channels, self.n_pools, self.slope = n_channels, n_pools, slope
        self.network = UNetNetwork(
            n_channels=n_channels, n_pools=n_pools, dropout=0.0, n_inputs=_N_INPUTS, slope=slope
        )
        self.register_buffer("range_per_std", torch.ones(()))

    def draw(
        self,
        kspace: Complex[Tensor, "batch 1 row col"],
        mask: Bool[Tensor, "batch col"],
        noise: Float[Tensor, "batch draw row col"],
        *,
        network: Network | None = None,
        is_half: bool = True,
    ) -> Float[Tensor, "batch draw row col"]:
        """Return samples that agree with the measurement, one for each noise.

        `network` is the same network in a faster form; by default it runs in parts that fit memory.
        On CUDA it runs in 16 bit if `is_half`.
        """
        known, is_known = completed(kspace, mask)
        image = ifft2c(known)[:, 0].real
        mean, std = (x[:, None, None] for x in statistics(image))
        std = std + _LEAST_STD
        shown = torch.stack([(x - mean) / std for x in (image, magnitude(ifft2c(kspace)))], dim=1)
        n_draws = noise.shape[1]
        shown = shown.repeat_interleave(n_draws, dim=0)
        inputs = torch.cat([shown, noise.flatten(0, 1)[:, None]], dim=1)
        with torch.autocast("cuda", torch.bfloat16, enabled=inputs.is_cuda and is_half):
            passed = self._passed if network is None else network
            output = passed(inputs.contiguous(memory_format=torch.channels_last))
        drawn = fft2c(output[:, 0].float().unflatten(0, (-1, n_draws)) * std[:, None])
        return ifft2c(torch.where(is_known[:, None, None], known, drawn)).real

    def _passed(
        self, inputs: Float[Tensor, "image input row col"]
    ) -> Float[Tensor, "image 1 row col"]:
        """Run the network, with as many images at once as memory allows."""
        limit = at_most_a_quarter(_MEMORY_LIMIT[inputs.device.type], inputs.device)
        most = max(1, limit // peak_bytes(self.n_channels, _N_INPUTS, *inputs.shape[-2:]))
        return torch.cat([self.network(part) for part in inputs.split(most)])

    def as_slices(self, images: Float[Tensor, "image row col"]) -> SliceBatch:
        """Return images as ground truth of simulated slices, with negative pixels set to zero."""
        return SliceBatch.of_images(images.clamp(min=0), self.range_per_std)


@final
class PosteriorPolicy(PosteriorSampler, Policy):
    """Scores columns by their mean gain on posterior samples.

    Args:
        n_channels: features of the finest level of the U-Net, doubled at each deeper level.
        n_pools: number of poolings.
        slope: negative slope of its leaky ReLUs.
        n_draws: number of samples.
        n_first: number of samples on which every column is tried.
        n_best: number of columns tried on the other samples: those with the highest mean gain on
            the first ones.
    """

    is_stochastic = False
    needs_measurement = True
    needs_gain_estimator = True
    serves_any_size = True
    changeable = ("n_draws", "n_first", "n_best")
    gain_units: Sequence[float] = (1.0,)

    _context: Context | None = None

    def __init__(
        self,
        *,
        n_channels: int = 32,
        n_pools: int = 4,
        slope: float = 0.2,
        n_draws: int = 16,
        n_first: int = 2,
        n_best: int = 16,
    ) -> None:
        super().__init__(n_channels=n_channels, n_pools=n_pools, slope=slope)
        if n_best < 1 or not 1 <= n_draws <= N_NOISES:
            raise ConfigError(
                f"n_best is {n_best} and n_draws {n_draws}; they must be at least 1, and n_draws "
                f"at most {N_NOISES}"
            )
        if not 1 <= n_first <= n_draws:
            raise ConfigError(f"n_first is {n_first}; use 1 to n_draws, which is {n_draws}")
        self.n_draws, self.n_first, self.n_best = n_draws, n_first, n_best

    def bind(self, context: Context) -> "PosteriorPolicy":
        bound = copy.copy(self)
        bound._context = context
        return bound

    @torch.no_grad()
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        if self._context is None or seen.zero_filled is None:
            raise ConfigError(
                f"{type(self).__name__} needs zero_filled in the observation and a reconstruction "
                "to try columns with; use policy.bind(simulator.context) and simulator.observe"
            )
        scores = torch.zeros(seen.mask.shape, device=seen.mask.device)
        n_left = int((~seen.mask).sum(dim=-1).max())
        if not n_left:
            return scores
        kspace = apply_mask(fft2c(seen.zero_filled), seen.mask)
        noise = noises(*kspace.shape[-2:], kspace.device)[: self.n_draws]
        images = self.draw(kspace, seen.mask, noise.expand(len(kspace), -1, -1, -1))
        # Unmeasured columns come first; measured ones fill up rows of images with fewer.
        columns = seen.mask.to(torch.int8).argsort(dim=-1, stable=True)[:, :n_left]
        is_measured = seen.mask.gather(-1, columns)
        every = self._gains(images[:, : self.n_first], columns, seen)
        gains = every.mean(dim=1).masked_fill(is_measured, -torch.inf)
        if self.n_draws > self.n_first:
            best = gains.topk(min(self.n_best, n_left), dim=-1).indices
            more = self._gains(images[:, self.n_first :], columns.gather(-1, best), seen)
            total = every.sum(dim=1).gather(-1, best) + more.sum(dim=1)
            mean = (total / self.n_draws).masked_fill(is_measured.gather(-1, best), torch.inf)
            # Other columns score no better than the last of these, despite noise of few samples.
            lowest = mean.amin(dim=-1, keepdim=True)
            gains = gains.clamp(max=lowest).scatter(-1, best, mean)
        return scores.scatter(-1, columns, gains.masked_fill(is_measured, 0.0))

    def _gains(
        self,
        images: Float[Tensor, "batch draw row col"],
        columns: Int[Tensor, "batch candidate"],
        seen: Observation,
    ) -> Float[Tensor, "batch draw candidate"]:
        assert self._context is not None
        n_draws = images.shape[1]
        mask, columns = (x.repeat_interleave(n_draws, dim=0) for x in (seen.mask, columns))
        truth = self.as_slices(images.flatten(0, 1))
        return self._context.gains(truth, mask, columns).unflatten(0, (-1, n_draws))


@lru_cache(maxsize=8)
def noises(n_rows: int, n_cols: int, device: torch.device) -> Float[Tensor, "noise row col"]:
    """Return the noise images of a size; shared between calls."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N_NOISES, n_rows, n_cols, generator=generator).to(device)


def moved_noises(
    n_rows: int, n_cols: int, numbers: Float[Tensor, "batch draw 3"]
) -> Float[Tensor, "batch draw row col"]:
    """Return new noise images by cyclic shifts of the stored ones.

    The numbers in [0, 1) decide which noise, and its shift along rows and columns.
    """
    known = noises(n_rows, n_cols, numbers.device)
    counts = (N_NOISES, n_rows, n_cols)
    which, down, across = (
        (x * n).long() for x, n in zip(numbers.unbind(dim=-1), counts, strict=True)
    )
    rows = (torch.arange(n_rows, device=numbers.device) + down[..., None]) % n_rows
    cols = (torch.arange(n_cols, device=numbers.device) + across[..., None]) % n_cols
    return known[which[..., None, None], rows[..., None], cols[..., None, :]]
