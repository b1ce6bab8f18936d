"""Mean gains that policies begin with, of each matrix size and start that they know."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.config import PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import Initial
from kscout.policies.mean_gains import row_of
from kscout.training.augmentation import coarser_slices
from kscout.training.estimators.labels import carried_on, dense_of
from kscout.training.fixed_order import FixedOrderResult, fit_fixed_order
from kscout.training.starting import StartsFromGains, StartsFromManyGains

_MOST_COARSER = 256
"""Slices on which mean gains of a coarser matrix are measured, unless more are asked for."""


class _Span(NamedTuple):
    """Which columns of which matrix an order takes."""

    n_cols: int
    n_first: int
    """Columns that are measured before the first."""
    n_rows: int


@final
@dataclass(frozen=True)
class MeanGains:
    """Mean gains for policies to begin with, measured where one first asks for them.

    Slices that are made coarser cost less, so that there are more of them, the same at each step.
    """

    config: PolicyConfig
    slices: SliceSet
    reconstructor: Reconstructor
    device: torch.device
    orders: dict[_Span, FixedOrderResult] = field(default_factory=dict)

    def units(self) -> Float[Tensor, " step"]:
        """Return the deviation over columns of those of slices as stored, from the first start."""
        own = _Span(self.slices.n_cols, *self.config.spanned)
        units = [row[~row.isnan()].std(correction=0) for row in self._gains(own)]
        return torch.stack(units).clamp(min=1e-8)

    def give(self, policy: StartsFromGains, units: Float[Tensor, " unit"]) -> None:
        """Let a policy begin with them, those of each size and start where it can.

        Args:
            policy: that begins.
            units: of labels, for each number of measured columns of slices as they are stored.
        """
        if not isinstance(policy, StartsFromManyGains):
            own = _Span(self.slices.n_cols, *self.config.spanned)
            return policy.start_from(self._in_units(own, units))
        for one in policy.tables:
            # Of others it keeps what it knows.
            if one.n_cols in (self.slices.n_cols, *dense_of(self.config).sizes):
                span = _Span(one.n_cols, one.n_first, one.n_rows)
                policy.start_from(self._in_units(span, units), one)
        return None

    def _fitted(self, span: _Span) -> FixedOrderResult:
        if span not in self.orders:
            self.orders[span] = self._measured(span)
        return self.orders[span]

    def _measured(self, span: _Span) -> FixedOrderResult:
        """Fit a fixed order to slices of so many columns."""
        slices, n_each = self._slices(span.n_cols)
        return fit_fixed_order(
            slices,
            self.reconstructor,
            n_initial=self._start(span),
            horizon=span.n_rows,
            n_slices_per_step=n_each,
            device=self.device,
            **self._scored_by,
        )

    def _gains(self, span: _Span) -> Float[Tensor, "step col"]:
        """Return mean gains along that order; not a number where a column is measured already."""
        return self._fitted(span).gains.to(self.device)

    def _slices(self, n_cols: int) -> tuple[SliceSet, int]:
        """Return slices of so many columns, and on how many of them each step is measured."""
        n_each, n_stored = dense_of(self.config).n_baseline_slices, self.slices.n_cols
        if n_cols == n_stored:
            return self.slices, n_each
        n_each = max(n_each, min(_MOST_COARSER, n_each * n_stored**2 // n_cols**2))
        return coarser_slices(self.slices.sample(n_each), n_cols), n_each

    def _start(self, span: _Span) -> Initial:
        is_stored = span.n_cols == self.slices.n_cols and not dense_of(self.config).starts
        return self.config.acquisition.start if is_stored else span.n_first

    @property
    def _scored_by(self) -> dict[str, Any]:
        training = dense_of(self.config)
        return {"protocol": training.protocol, "metric": training.metric}

    def _in_units(self, span: _Span, units: Float[Tensor, " unit"]) -> Float[Tensor, "step col"]:
        measured = torch.arange(span.n_rows, device=self.device)
        share = self.slices.n_cols / span.n_cols
        row = row_of(measured + span.n_first, self.config.spanned[0], len(units), share=share)
        return carried_on(self._gains(span) / units[row, None])
