"""Training of posterior samplers with the energy score.

For each slice some columns are measured, and the policy samples two images x, x'. With the ground
truth t, the loss of a value is the energy score

    (|x - t| + |x' - t| - |x - x'|) / 2,

whose mean over the noise is lowest if the samples have the distribution of the ground truth given
the measurement. It is computed for all pixels and for all entries of k-space, whose variance
determines the gain of a column. Training tries no column and reconstructs no image.

The measured columns are those of an acquisition: a start, and others up to the budget. They are
sampled by their mean gains along a fixed order, with a random sharpness, or are those that another
policy acquires on the same slice (`training.follows`). In half of all cases some of these are
replaced by sampled ones, because no other policy acquires exactly the columns that this one will.
"""

from dataclasses import replace
from typing import cast, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import training_plan
from kscout.compatibility import check_matrix
from kscout.config import PosteriorTraining
from kscout.core import Reconstructor, SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.json_types import StateDict
from kscout.names import METRICS
from kscout.physics.fourier import fft2c, ifft2c, opposite
from kscout.physics.sampling import apply_mask, start_mask
from kscout.policies import load
from kscout.policies.posterior import Network, PosteriorSampler, moved_noises, noises
from kscout.training.algorithm import PolicyLearner
from kscout.training.algorithms.gradient import Batch, Draws, GeneratorFor, Tensors, WarmedEstimator
from kscout.training.augmentation import mirrored
from kscout.training.fixed_order import filled_gains, fit_fixed_order

_N_DRAWN = 2
"""Samples of each slice."""
_N_COUNTS, _N_VARIED = 4, 2
"""Random numbers of a slice for its mask and its augmentation, one more than needed: version 0.2
sampled these numbers, and a seed has the same effect."""
_SHARPNESS = (0.5, 2.5)
"""Range of the weight of mean gains, in standard deviations over columns, next to Gumbel noise."""
_WHOLE = 0.5
"""Share of slices whose mask is exactly that of another policy."""
_FIRST = 1e3
"""Far above any other sampling key."""
_N_RANGES = 256
"""Slices from which the range of images is estimated."""
_N_AT_ONCE = {"cpu": 16, "cuda": 256}
"""Slices acquired together."""
_LEAST_STD = 1e-11
_LEAST_SQUARE = 1e-12
"""Added to squares before the root, whose gradient at zero is infinite."""


@final
class Posterior(WarmedEstimator):
    """Trains a posterior sampler."""

    settings = PosteriorTraining
    training: PosteriorTraining
    is_pure = True

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, slices, reconstructor)
        if slices.kind != IMAGES.name:
            raise ConfigError(
                f"posterior samples are real images, and the store holds {slices.kind}; train "
                "another policy, or import magnitude images"
            )
        if not isinstance(learner.module, PosteriorSampler):
            raise ConfigError(
                "posterior trains networks that sample images, and "
                f"{type(learner.module).__name__} samples none; use policy.name = 'posterior', or "
                "another --method"
            )
        self.sampler = learner.module
        self.gains = torch.zeros(1, slices.n_cols, device=self.device)
        """By the number of columns measured after the start, in deviations over columns."""
        self.followed: Int[Tensor, "slice step"] | None = None
        # Cached here, as CUDA graphs read it.
        self.noises = noises(*slices.shape[1:], self.device)
        is_half = self.device.type == "cuda" and self.training.precision != "fp32"
        self.network: Network = self.sampler.network
        if self.training.compile and is_half:
            self.network = cast(Network, torch.compile(self.network, dynamic=False))

    def restore(self, state: StateDict) -> None:
        """Restore a checkpoint, or find the range of images and the gains along a fixed order."""
        if state:
            self.gains, self.followed = state["gains"].to(self.device), state["followed"]
        else:
            self._begin()
        if self.followed is not None:
            self.followed = self.followed.to(self.device)

    def _begin(self) -> None:
        training = self.training
        order = fit_fixed_order(
            *(self.slices, self.reconstructor, training_plan(self.config)),
            n_slices_per_step=training.n_baseline_slices,
            device=self.device,
        )
        gains = filled_gains(order.gains.to(self.device))
        apart = gains - gains.mean(dim=-1, keepdim=True)
        self.gains = apart / gains.std(dim=-1, keepdim=True).clamp(min=1e-12)
        self.followed = self._paths() if training.follows else None
        # A ratio of sums over slices gives dark slices little weight.
        total = torch.zeros(2, device=self.device)
        for batch in self.slices.sample(_N_RANGES).batches(64):
            total += torch.stack([batch.data_range.sum(), batch.target_std.sum()])
        self.sampler.range_per_std.copy_(total[0] / total[1].clamp(min=_LEAST_STD))

    @torch.no_grad()
    def _paths(self) -> Int[Tensor, "slice step"]:
        training, plan = self.training, replace(training_plan(self.config), is_argmax=True)
        policy, columns = load(training.follows, device=self.device), []
        check_matrix(policy, self.slices.shape, name=training.follows)
        for batch in self.slices.batches(_N_AT_ONCE[self.device.type]):
            done = rollout(policy, plan.simulator(batch, self.reconstructor), plan)
            columns.append(done.columns[:, 0].cpu())
        return torch.cat(columns)

    def state(self) -> StateDict:
        followed = None if self.followed is None else self.followed.cpu()
        return {"gains": self.gains.cpu(), "followed": followed}

    def validated(self, slices: SliceSet) -> SliceSet:
        """Return some of the slices: many columns of each are tried on every sample."""
        return slices.sample(self.training.n_validated)

    def draw(self, n_slices: int, n_batches: int, generator: GeneratorFor) -> Draws:
        numbers = torch.rand(n_slices, _N_VARIED, generator=generator("varied"))
        return Draws(
            {
                "columns": torch.rand(n_slices, self.slices.n_cols, generator=generator("columns")),
                "counts": torch.rand(n_slices, _N_COUNTS, generator=generator("counts")),
                "moved": torch.rand(n_slices, _N_DRAWN, 3, generator=generator("noises")),
                "is_mirrored": (numbers[:, 0] < 0.5) & self.training.flips,
            }
        )

    def augmented(self, batch: SliceBatch, draws: Tensors) -> SliceBatch:
        return mirrored(batch, draws["is_mirrored"]) if self.training.flips else batch

    @property
    def n_tried(self) -> float:
        """Equivalent of two images per slice: no column is tried."""
        return (_N_DRAWN - 1) / self.config.acquisition.horizon

    def update(self, batch: Batch) -> Float[Tensor, ""]:
        slices, draws = batch.slices, batch.draws
        mask = self._masks(slices, draws["columns"], draws["counts"], draws["is_mirrored"])
        kspace = apply_mask(slices.kspace, mask)
        truth = ifft2c(slices.kspace)[:, 0].real
        n_rows, n_cols = truth.shape[-2:]
        noise = moved_noises(n_rows, n_cols, draws["moved"])
        # The last batch of an epoch may be smaller; compilation for its size would not pay off.
        is_whole = len(kspace) == self.training.batch_size
        drawn = self.sampler.draw(
            kspace,
            mask,
            noise,
            network=self.network if is_whole else self.sampler.network,
            is_half=self.training.precision != "fp32",
        )
        torch.autograd.backward(energy_score(drawn, truth, slices.target_std))
        mean = drawn.detach().mean(dim=1).clamp(min=0)
        metric = METRICS.resolve(self.training.metric)
        return metric(mean, slices.target, data_range=slices.data_range).mean()

    def _masks(
        self,
        slices: SliceBatch,
        columns: Float[Tensor, "slice col"],
        counts: Float[Tensor, "slice count"],
        is_mirrored: Bool[Tensor, " slice"],
    ) -> Bool[Tensor, "slice col"]:
        """Return columns that may be measured before a step; random numbers decide them.

        `counts` decide the number of columns, the sharpness of the distribution, and the columns
        of a path that are left out.
        """
        setting, n_cols, device = self.config.acquisition, slices.n_cols, columns.device
        start = start_mask(setting.start, columns.shape, device)
        n_more = (counts[:, 0] * setting.horizon).long()
        least, most = _SHARPNESS
        sharpness = least + (most - least) * counts[:, 1:2]
        # The largest of such numbers are draws without replacement (Gumbel).
        keys = sharpness * self.gains[n_more] - (-columns.clamp(min=1e-7).log()).log()
        if self.followed is not None:
            path = self.followed[slices.index]
            path = torch.where(is_mirrored[:, None], opposite(n_cols, device)[path], path)
            is_passed = torch.arange(path.shape[1], device=device) < n_more[:, None]
            left_out = (counts[:, 2:3] - _WHOLE) / (1 - _WHOLE)
            is_kept = is_passed & (columns.gather(-1, path) >= left_out)
            # Before all sampled columns, which replace those left out or in the start.
            keys = keys + keys.new_zeros(keys.shape).scatter(-1, path, _FIRST * is_kept)
        keys = keys.masked_fill(start | ~slices.selectable, -torch.inf)
        rank = keys.argsort(dim=-1, descending=True).argsort(dim=-1)
        return start | ((rank < n_more[:, None]) & slices.selectable)


def energy_score(
    drawn: Float[Tensor, "slice 2 row col"],
    truth: Float[Tensor, "slice row col"],
    unit: Float[Tensor, " slice"],
) -> Float[Tensor, ""]:
    """Return the mean energy score of pixels, plus that of entries of k-space."""
    pairs = [(*drawn.unbind(dim=1), truth), (*fft2c(drawn).unbind(dim=1), fft2c(truth))]
    unit = unit[:, None, None].clamp(min=_LEAST_STD)
    scores = [
        _length((one - true) / unit)
        + _length((other - true) / unit)
        - _length((one - other) / unit)
        for one, other, true in pairs
    ]
    return (scores[0].mean() + scores[1].mean()) / 2


def _length(
    difference: Float[Tensor, "slice row col"] | Complex[Tensor, "slice row col"],
) -> Float[Tensor, "slice row col"]:
    if not difference.is_complex():
        return difference.abs()
    return (difference.real.square() + difference.imag.square() + _LEAST_SQUARE).sqrt()
