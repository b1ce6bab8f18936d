"""Look-ahead without the truth: columns are tried on estimates of the image that is measured.

A policy can simulate: with an image x' that may be the truth it can measure any column of x',
reconstruct, and score the result against x'. The estimates here are the reconstruction itself, and
that of k-space which was completed first: a real image x has y[-k] = conj(y[k]), so that each
measured column tells its opposite, too. Both are made to agree with what was measured and its
mirror image. Of the columns that a policy scores highest the one with the largest

    v * (gain that the policy expects) + w * (mean simulated gain)

is taken. `fit_weights` finds v and w by least squares on training slices, where gains are known.
Nothing but what was measured is looked at, so that the best greedy policy is at least as good, up
to noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.core import Measurement, Observation, Policy, Protocol, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.physics.fourier import completed, fft2c, ifft2c
from kscout.training.least_squares import Sums

_LEAST = torch.finfo(torch.float32).tiny
Weights = tuple[float, float]
"""Of the gain that a policy expects, and of the simulated one."""


def agreeing(
    expected: Complex[Tensor, "batch row col"],
    kspace: Complex[Tensor, "batch row col"],
    mask: Bool[Tensor, "batch col"],
) -> Float[Tensor, "batch row col"]:
    """Return real images with the measured columns, and their mirror images, in place.

    The rest is in units in which the measured columns agree best, DC left aside.

    Args:
        expected: k-space of images in any units.
        kspace: zero where it was not measured.
        mask: of what was measured.
    """
    is_compared = mask[:, None, :].expand(kspace.shape).clone()
    is_compared[:, kspace.shape[1] // 2, kspace.shape[2] // 2] = False
    compared = expected * is_compared
    power = compared.abs().square().sum(dim=(1, 2)).clamp(min=_LEAST)
    scale = (compared.conj() * kspace).real.sum(dim=(1, 2)) / power
    known, is_known = completed(kspace[:, None], mask)
    filled = torch.where(is_known[:, None], known[:, 0], expected * scale[:, None, None])
    return ifft2c(filled).real.clamp(min=0)


@final
@dataclass(frozen=True)
class Estimates:
    """What an image may be, from what was measured of it.

    Args:
        reconstructor: that estimates; any, it need not be the one that is judged.
        range_per_std: data range over the deviation of an image: a slice cannot tell its volume's.
    """

    reconstructor: Reconstructor
    range_per_std: float

    @classmethod
    def of(cls, reconstructor: Reconstructor, slices: SliceSet) -> "Estimates":
        """Take ranges from training slices."""
        batch = slices.batch(torch.arange(len(slices), device=slices.index_device))
        return cls(reconstructor, float((batch.data_range / batch.target_std).mean()))

    @torch.no_grad()
    def batch(self, seen: Observation) -> SliceBatch:
        """Return the estimates of all images: first one of each, then another of each."""
        if seen.zero_filled is None:
            raise ConfigError(
                "estimates are made from k-space, and the observation has none; give zero_filled"
            )
        kspace = fft2c(seen.zero_filled) * seen.mask[:, None, None]
        found = [self._image(kspace, seen.mask), self._image(*completed(kspace, seen.mask))]
        images = torch.cat([agreeing(fft2c(image), kspace[:, 0], seen.mask) for image in found])
        return SliceBatch.of_images(images, self.range_per_std)

    def _image(
        self, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> Float[Tensor, "batch row col"]:
        return self.reconstructor.reconstruct(Measurement.of(kspace, mask)).image.float()


@final
class LookAhead(Policy):
    """Tries the columns that a policy scores highest on estimates of the image.

    Args:
        policy: whose scores may be gains, in its units, or anything that ranks columns.
        reconstructor: frozen, whose images are judged.
        estimates: what the image may be.
        weights: for each step; the last for all that follow.
        n_columns: how many are tried.
        protocol: how images are un-normalized before they are scored.
        start: columns of the start, whose sensitivities acquisitions keep; not given: those of
            each state's mask.
    """

    is_stochastic = False
    needs_measurement = True

    def __init__(
        self,
        policy: Policy,
        reconstructor: Reconstructor,
        estimates: Estimates,
        *,
        weights: Sequence[Weights] = ((1.0, 1.0),),
        n_columns: int = 8,
        protocol: Protocol = "paper",
        start: Bool[Tensor, " col"] | None = None,
    ) -> None:
        super().__init__()
        self.start = start
        if policy.needs_target:
            raise ConfigError("look-ahead needs no truth, and an oracle sees it; give a policy")
        self.policy, self.reconstructor, self.estimates = policy, reconstructor, estimates
        self.needs_judge = policy.needs_judge
        self.weights, self.n_columns, self.protocol = list(weights), n_columns, protocol

    @torch.no_grad()
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        columns, expected, simulated = self.tried(seen)
        own, other = self._at_step(seen, self.weights).T[:, :, None]
        worth = own * expected + other * simulated
        below = worth.amin(dim=-1, keepdim=True) - 1
        return below.repeat(1, seen.mask.shape[1]).scatter(-1, columns, worth)

    def tried(
        self, seen: Observation
    ) -> tuple[Int[Tensor, "batch n"], Float[Tensor, "batch n"], Float[Tensor, "batch n"]]:
        """Return the columns that are tried, the policy's scores of them and simulated gains."""
        unit = self.policy.units_at(seen.mask, seen.for_each(seen.step))
        scores = self.policy(seen).float().masked_fill(seen.mask, -torch.inf)
        columns = scores.topk(min(self.n_columns, scores.shape[1]), dim=-1).indices
        # Where too few are left, the best stands in for the others.
        columns = torch.where(seen.mask.gather(-1, columns), columns[:, :1], columns)
        expected = scores.gather(-1, columns) * unit[:, None]
        return columns, expected, self._simulated(seen, columns)

    def _at_step(self, seen: Observation, values: Sequence[Weights]) -> Float[Tensor, "batch pair"]:
        """Return what belongs to the step of each image."""
        table = torch.tensor(values, device=seen.mask.device)
        return table[seen.for_each(seen.step).clamp(max=len(table) - 1)]

    def _simulated(
        self, seen: Observation, columns: Int[Tensor, "batch n"]
    ) -> Float[Tensor, "batch n"]:
        """Return the mean gain of columns over the estimates."""
        batch = self.estimates.batch(seen)
        n_each = len(batch) // len(columns)
        simulator = Simulator(batch, self.reconstructor, protocol=self.protocol)
        mask = seen.mask.repeat(n_each, 1)
        start = mask if self.start is None else self.start.expand(mask.shape)
        state = simulator.start_from(mask, maps=simulator.calibrate(start))
        gains = simulator.score_columns(state, columns.repeat(n_each, 1)) - state.score[:, None]
        return gains.unflatten(0, (n_each, -1)).mean(dim=0)


@torch.no_grad()
def fit_weights(ahead: LookAhead, slices: SliceSet, plan: AcquisitionPlan) -> list[Weights]:
    """Return the weights with which gains of tried columns are told best, for each step.

    Gains are regressed on both within each state, so that what all its columns share plays no
    role. A weight that came out negative is zero, and the other is found alone.

    Args:
        ahead: the policy, whose own weights play no role.
        slices: training slices, acquired as the policy below would.
        plan: how.
    """
    sums = Sums.empty(plan.horizon, 2, torch.device("cpu"))
    for step, expected, simulated, gains in _states(ahead, slices, plan):
        sums.add(step, torch.stack([expected, simulated]).cpu(), gains.cpu())
    weights, _ = sums.solved()
    return [(own, other) for own, other in weights.tolist()]


def _states(
    ahead: LookAhead, slices: SliceSet, plan: AcquisitionPlan
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yield the step, and of tried columns the expected, the simulated and the true gain."""
    for batch in slices.batches(plan.n_at_once(slices)):
        simulator = Simulator(batch, ahead.reconstructor, protocol=plan.protocol)
        state = simulator.start(plan.start(slices))
        for step in range(plan.horizon):
            seen = simulator.observe(ahead, state, n_left=plan.horizon - step)
            columns, expected, simulated = ahead.tried(seen)
            gains = simulator.score_columns(state, columns) - state.score[:, None]
            yield step, expected, simulated, gains
            state = simulator.acquire(state, columns[:, 0])


__all__ = ["Estimates", "LookAhead", "Weights", "agreeing", "fit_weights"]
