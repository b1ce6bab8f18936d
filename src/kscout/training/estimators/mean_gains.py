"""Mean gains that policies begin with, of each matrix size and start that they know."""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.config import PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.policies.mean_gains import row_of
from kscout.training.augmentation import coarser_slices
from kscout.training.estimators.labels import carried_on, dense_of, scored_by
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.starting import StartsFromGains, StartsFromManyGains

_MOST_COARSER = 256
"""Slices on which mean gains of a coarser matrix are measured, unless more are asked for."""


@final
@dataclass(frozen=True)
class MeanGains:
    """Mean gains in units for policies to begin with, measured where one first asks for them.

    Those of slices as they are stored come from `mean_labels`. Slices that are made coarser cost
    less, so that there are more of them, the same at each step.
    """

    config: PolicyConfig
    slices: SliceSet
    reconstructor: Reconstructor
    units: Float[Tensor, " unit"]
    """Of labels, for each number of measured columns of slices as they are stored."""
    known: dict[tuple[int, int, int], Float[Tensor, "step col"]]
    """By columns of the matrix, those measured at first, and rows."""

    @classmethod
    def of(
        cls,
        config: PolicyConfig,
        slices: SliceSet,
        reconstructor: Reconstructor,
        gains: Float[Tensor, "step col"],
        units: Float[Tensor, " step"],
    ) -> "MeanGains":
        """Begin with mean labels of slices as they are stored, from the earliest start."""
        own = {(slices.n_cols, *config.spanned): carried_on(gains / units[:, None])}
        return cls(config, slices, reconstructor, units, own)

    def give(self, policy: StartsFromGains) -> None:
        """Let a policy begin with them, those of each size and start where it can."""
        own = (self.slices.n_cols, *self.config.spanned)
        if not isinstance(policy, StartsFromManyGains):
            return policy.start_from(self.known[own])
        for one in policy.tables:
            # Of others it keeps what it knows.
            if one.n_cols in (self.slices.n_cols, *dense_of(self.config).sizes):
                key = (one.n_cols, one.n_first, one.n_rows)
                if key not in self.known:
                    self.known[key] = self._measured(*key)
                policy.start_from(self.known[key], one)
        return None

    def _measured(self, n_cols: int, n_first: int, n_rows: int) -> Float[Tensor, "step col"]:
        """Fit a fixed order to slices of so many columns."""
        training, slices, device = dense_of(self.config), self.slices, self.units.device
        n_each = training.n_prior_slices
        if n_cols != slices.n_cols:
            n_each = max(n_each, min(_MOST_COARSER, n_each * slices.n_cols**2 // n_cols**2))
            slices = coarser_slices(slices.sample(n_each), n_cols)
        sizes: dict[str, Any] = {"n_initial": n_first, "horizon": n_rows, "device": device}
        how = {"n_slices_per_step": n_each, **scored_by(training)}
        gains = fit_fixed_order(slices, self.reconstructor, **sizes, **how).gains.to(device)
        measured = torch.arange(n_first, n_first + n_rows, device=device)
        share = self.slices.n_cols / n_cols
        row = row_of(measured, self.config.spanned[0], len(self.units), share=share)
        return carried_on(gains / self.units[row, None])
