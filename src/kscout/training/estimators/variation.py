"""What differs between one visit of a slice and the next: its image, its start and its budget.

Numbers in [0, 1) that are drawn for a slice decide all of it, so that what was seen can be seen
again.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.columns import share_of
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Policy, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.physics.sampling import Initial, center_mask
from kscout.training.augmentation import N_VARIED, check_sizes, check_varied, varied
from kscout.training.estimators.gradient import GeneratorFor

N_DRAWN = N_VARIED + 2
"""Whether a slice is mirrored, its zoom, its budget, its start."""


@final
@dataclass(frozen=True)
class Variation:
    """How slices are varied, as the settings of a training say."""

    config: PolicyConfig
    n_cols: int
    """Columns of the slices as they are stored."""

    @property
    def training(self) -> DenseTraining:
        assert isinstance(self.config.training, DenseTraining)
        return self.config.training

    def draw(self, n_slices: int, generator: GeneratorFor) -> Float[Tensor, "slice number"]:
        """Draw the numbers of an epoch."""
        return torch.rand(n_slices, N_DRAWN, generator=generator("varied"))

    def of(self, batch: SliceBatch, numbers: Float[Tensor, "slice number"]) -> SliceBatch:
        """Return slices of which some are mirrored or magnified."""
        return varied(batch, numbers, self.training)

    def n_steps(self, n_cols: int) -> int:
        """Return how many columns of a matrix are acquired: the same share of any."""
        return self._share(self.config.acquisition.horizon, n_cols)

    def horizons(
        self, numbers: Float[Tensor, "slice number"], n_cols: int
    ) -> Int[Tensor, " slice"]:
        """Return how many columns each slice with so many may acquire."""
        drawn = self.training.horizons
        horizons = numbers.new_full((len(numbers),), self.n_steps(n_cols)).long()
        for at, horizon in enumerate(drawn):
            is_drawn = (numbers[:, 2] * len(drawn)).long() == at
            horizons = torch.where(is_drawn, self._share(horizon, n_cols), horizons)
        return horizons

    def initial(self, numbers: Float[Tensor, "slice number"], n_cols: int) -> Initial:
        """Return where the acquisitions of slices with so many columns start."""
        if not self.training.starts and not self.training.sizes:
            return self.config.acquisition.start
        counts = [self._share(n, n_cols) for n in self.starts]
        masks = torch.stack([center_mask(n_cols, n, numbers.device) for n in counts])
        return masks[self.start(numbers)]

    @property
    def starts(self) -> tuple[int, ...]:
        """Return how many columns of slices as stored may be measured at the start."""
        return self.training.starts or (self.config.acquisition.n_initial,)

    def start(self, numbers: Float[Tensor, "slice number"]) -> Int[Tensor, " slice"]:
        """Return which of `starts` was drawn for each slice."""
        return (numbers[:, 3] * len(self.starts)).long()

    def _share(self, n: int, n_cols: int) -> int:
        """Return how many columns of a matrix are as much of it as some are of those stored."""
        return share_of(n, n_cols, self.n_cols)

    def check(self, policy: Policy, slices: SliceSet) -> None:
        """Refuse to vary what cannot be."""
        training = self.training
        check_sizes(training.sizes, slices.kind, slices.n_cols)
        check_varied(training, slices.kind)
        if training.sizes and not policy.serves_any_size:
            raise ConfigError(
                f"training.sizes are for networks of any size, and {type(policy).__name__} has "
                "one; use policy.name = 'column'"
            )
