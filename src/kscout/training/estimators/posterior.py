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

from collections.abc import Sequence
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import rollout
from kscout.compatibility import check_matrix
from kscout.config import PolicyConfig, PosteriorTraining
from kscout.core import Reconstructor, SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.names import METRICS
from kscout.physics.fourier import fft2c, ifft2c, opposite
from kscout.physics.sampling import apply_mask, center_mask, start_mask
from kscout.policies import load
from kscout.policies.posterior import Network, PosteriorPolicy, moved_noises, noises
from kscout.training.augmentation import N_VARIED, is_flipped, varied
from kscout.training.distributed import from_main, share
from kscout.training.estimators import PolicyTrainee
from kscout.training.estimators.gradient import Batch, Draws, GeneratorFor, WarmedEstimator
from kscout.training.estimators.labels import carried_on
from kscout.training.fixed_order import fit_fixed_order

_N_DRAWN = 2
"""Images of each slice."""
_SHARPNESS = (0.5, 2.5)
"""Least and most weight of a mean gain, in its deviations over columns, beside Gumbel noise."""
_WHOLE = 0.5
"""Share of slices that are measured where another policy would, and nowhere else."""
_FIRST = 1e3
"""Far above any number that a column is drawn by."""
_N_RANGES = 256
"""Slices whose range is told in deviations."""
_N_AT_ONCE = {"cpu": 16, "cuda": 256}
"""Slices that are acquired at a time."""
_LEAST_STD = 1e-11
_LEAST_SQUARE = 1e-12
"""Added to squares before their root, whose slope at zero is infinite."""


@final
class Posterior(WarmedEstimator):
    """Trains posterior samplers."""

    settings = PosteriorTraining
    is_pure = True

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, slices, reconstructor)
        if slices.kind != IMAGES.name:
            raise ConfigError(
                f"posterior samples are real images, and the store holds {slices.kind}; train "
                "another policy, or import magnitude images"
            )
        self.gains = torch.zeros(1, slices.n_cols, device=self.device)
        """By the number of columns measured after the start, in deviations over columns."""
        self.followed: Int[Tensor, "slice step"] | None = None
        training, setting = _training(trainees[0].config), trainees[0].config.acquisition
        budget = setting.n_initial + setting.horizon
        if max(training.starts, default=0) >= budget:
            raise ConfigError(
                f"of training.starts, {max(training.starts)} columns leave nothing to choose of a "
                f"budget of {budget}; leave it out"
            )
        self.n_whole = len(share(torch.arange(training.batch_size)))
        # Kept here, as CUDA graphs read it.
        self.noises = noises(*slices.shape[1:], self.device)
        is_half = self.device.type == "cuda" and training.precision != "fp32"
        builds = training.compile and is_half
        networks = [_policy(x).network for x in trainees]
        self.networks: list[Network] = [
            cast(Network, torch.compile(x, dynamic=False)) if builds else x for x in networks
        ]

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on, or find the range of images and what columns gain along a fixed order."""
        policy, config = _policy(self.trainees[number]), self.trainees[number].config
        if number == 0:
            self._begin(config, state)
        if not state:
            policy.range_per_std.copy_(self._range_per_std())

    def _range_per_std(self) -> Float[Tensor, ""]:
        """Return the ratio of sums, in which a dark slice of a bright volume counts for little."""
        total = torch.zeros(2, device=self.device)
        for batch in self.slices.sample(_N_RANGES).batches(64):
            total += torch.stack([batch.data_range.sum(), batch.target_std.sum()])
        return total[0] / total[1].clamp(min=_LEAST_STD)

    def _begin(self, config: PolicyConfig, state: dict[str, Any]) -> None:
        training, setting = _training(config), config.acquisition
        if state:
            self.gains, self.followed = state["gains"].to(self.device), state["followed"]
        else:
            found = fit_fixed_order(
                self.slices,
                self.reconstructor,
                n_initial=setting.start,
                horizon=setting.horizon,
                n_slices_per_step=training.n_baseline_slices,
                protocol=training.protocol,
                metric=training.metric,
                device=self.device,
            )
            gains = carried_on(found.gains.to(self.device))
            apart = gains - gains.mean(dim=-1, keepdim=True)
            unit = gains.std(dim=-1, keepdim=True).clamp(min=1e-12)
            # Near a tie another process may come to another order.
            self.gains = from_main((apart / unit).cpu()).to(self.device)
            self.followed = from_main(self._paths(config)) if training.follows else None
        if self.followed is not None:
            self.followed = self.followed.to(self.device)

    @torch.no_grad()
    def _paths(self, config: PolicyConfig) -> Int[Tensor, "slice step"]:
        """Return the columns that another policy takes, slice by slice."""
        training, setting = _training(config), config.acquisition
        policy, found = load(training.follows, device=self.device), []
        name = str(training.follows)
        check_matrix(policy, self.slices.shape, name=name, network=self.reconstructor)
        for batch in self.slices.batches(_N_AT_ONCE[self.device.type]):
            how = {"protocol": training.protocol, "metric": training.metric}
            simulator = Simulator(batch, self.reconstructor, **how)  # type: ignore[arg-type]
            budget = {"n_initial": setting.start, "horizon": setting.horizon}
            done = rollout(policy, simulator, **budget, is_argmax=True)  # type: ignore[arg-type]
            found.append(done.columns[:, 0].cpu())
        return torch.cat(found)

    def state(self, number: int) -> dict[str, Any]:
        followed = None if self.followed is None else self.followed.cpu()
        return {"gains": self.gains.cpu(), "followed": followed}

    def validated(self, slices: SliceSet) -> SliceSet:
        """Return some of the slices: many columns of each are tried on every draw."""
        return slices.sample(_training(self.trainees[0].config).n_validated)

    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        columns = torch.rand(n_slices, self.slices.n_cols, generator=generator("columns"))
        counts = torch.rand(n_slices, 4, generator=generator("counts"))
        moved = torch.rand(n_slices, _N_DRAWN, 3, generator=generator("noises"))
        numbers = torch.rand(n_slices, N_VARIED, generator=generator("varied"))
        return Draws([columns, counts, moved, numbers])

    def varied(self, batch: SliceBatch, per_slice: Sequence[Tensor]) -> SliceBatch:
        """Return slices that are varied as was drawn for them."""
        return varied(batch, per_slice[3], _training(self.trainees[0].config))

    def n_tried(self, config: PolicyConfig) -> float:
        """Return what makes two images a slice: no column is tried."""
        return (_N_DRAWN - 1) / config.acquisition.n_steps

    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        slices, n_policies = batch.simulator.batch, len(batch.policies)
        columns, counts, moved, numbers = batch.per_slice
        is_mirrored = is_flipped(numbers, _training(batch.configs[0]))
        mask = self._masks(batch.configs[0], slices, columns, counts, is_mirrored)
        kspace = apply_mask(slices.kspace, mask)
        truth = ifft2c(slices.kspace)[:, 0].real
        n_rows, n_cols = truth.shape[-2:]
        noise = moved_noises(n_rows, n_cols, moved)
        parts = [x.chunk(n_policies) for x in (kspace, mask, noise, truth, slices.target_std)]
        means = []
        for number in range(n_policies):
            own, own_mask, own_noise, own_truth, unit = (x[number] for x in parts)
            policy = _policy(self.trainees[batch.first + number])
            # An epoch's last batch may be smaller, and is not worth another compilation.
            is_whole = len(own) == self.n_whole
            network = self.networks[batch.first + number] if is_whole else policy.network
            is_half = _training(batch.configs[0]).precision != "fp32"
            drawn = policy.draw(own, own_mask, own_noise, network=network, is_half=is_half)
            torch.autograd.backward(energy_score(drawn, own_truth, unit))
            means.append(drawn.detach().mean(dim=1).clamp(min=0))
        metric = METRICS.resolve(_training(batch.configs[0]).metric)
        scores = metric(torch.cat(means), slices.target, data_range=slices.data_range)
        return scores.view(n_policies, -1).mean(dim=-1)

    def _masks(
        self,
        config: PolicyConfig,
        slices: SliceBatch,
        columns: Float[Tensor, "slice col"],
        counts: Float[Tensor, "slice 4"],
        is_mirrored: Bool[Tensor, " slice"],
    ) -> Bool[Tensor, "slice col"]:
        """Return what may have been measured before a step, by numbers drawn for each slice.

        Args:
            config: says where acquisitions start and how far they go.
            slices: that are measured.
            columns: which columns.
            counts: how many of them, how sharply they are drawn, how many of a path are left out,
                and from which start.
            is_mirrored: whether the slice is mirrored since another policy saw it.
        """
        setting, starts = config.acquisition, _training(config).starts
        n_cols, device = slices.n_cols, columns.device
        start = start_mask(setting.start, columns.shape, device)
        if starts:
            known = torch.stack([center_mask(n_cols, n, device) for n in starts])
            start = known[(counts[:, 3] * len(starts)).long()]
        n_start = start.sum(dim=-1)
        n_more = (counts[:, 0] * (setting.n_initial + setting.horizon - n_start)).long()
        row = (n_start + n_more - setting.n_initial).clamp(min=0, max=len(self.gains) - 1)
        least, most = _SHARPNESS
        sharpness = least + (most - least) * counts[:, 1:2]
        # The largest of such numbers are draws without replacement (Gumbel).
        keys = sharpness * self.gains[row] - (-columns.clamp(min=1e-7).log()).log()
        if self.followed is not None:
            path = self.followed[slices.index]
            path = torch.where(is_mirrored[:, None], opposite(n_cols, device)[path], path)
            is_passed = torch.arange(path.shape[1], device=device) < n_more[:, None]
            left_out = (counts[:, 2:3] - _WHOLE) / (1 - _WHOLE)
            is_kept = is_passed & (columns.gather(-1, path) >= left_out)
            # Before all that are drawn, which stand in for those left out or in the start.
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


def _policy(trainee: PolicyTrainee) -> PosteriorPolicy:
    policy = trainee.module
    if not isinstance(policy, PosteriorPolicy):
        raise ConfigError(
            f"posterior trains networks that sample images, and {type(policy).__name__} samples "
            "none; use policy.name = 'posterior', or another --method"
        )
    return policy


def _training(config: PolicyConfig) -> PosteriorTraining:
    assert isinstance(config.training, PosteriorTraining)
    return config.training
