"""Mean labels that policies begin with, of each matrix size and start that they know."""

from dataclasses import dataclass, field
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition.completion import Completion
from kscout.columns import span_of
from kscout.config import PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import Initial
from kscout.policies.mean_gains import row_of
from kscout.training.augmentation import coarser_slices
from kscout.training.estimators.labels import MeanLabels, carried_on, dense_of, mean_labels
from kscout.training.starting import StartsFromGains, StartsFromManyGains

_MOST_COARSER = 256
"""Slices on which mean gains of a coarser matrix are measured, unless more are asked for."""
_LATER = 1e-2
"""Units by which the last column of an order is worth less than the first, where columns are worth
the same at the end: a policy that begins with that takes the order, whatever its budget."""


class _Span(NamedTuple):
    """Which columns of which matrix an order takes."""

    n_cols: int
    n_first: int
    """Columns that are measured before the first."""
    n_rows: int


@final
@dataclass(frozen=True)
class MeanGains:
    """Mean labels for policies to begin with, measured where one first asks for them.

    Slices that are made coarser cost less, so that there are more of them, the same at each step.
    """

    config: PolicyConfig
    slices: SliceSet
    reconstructor: Reconstructor
    device: torch.device
    known: dict[_Span, MeanLabels] = field(default_factory=dict)

    def first(self) -> MeanLabels:
        """Return those of slices as they are stored, from the earliest start."""
        return self._of(_Span(self.slices.n_cols, *self.config.spanned))

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

    def completion(self, n_cols: int) -> Completion:
        """Return that by the orders of a matrix, one for each start of the training."""
        (n_first, n_rows), found = self.config.spanned, []
        for start in dense_of(self.config).starts or (n_first,):
            span = (start, n_first + n_rows - start)
            if n_cols != self.slices.n_cols:
                span = span_of(*span, n_cols, self.slices.n_cols)
            order = self._of(_Span(n_cols, *span)).order
            found.append(Completion.of(order, n_cols, self.device).ranked)
        return Completion(torch.stack(found))

    def _of(self, span: _Span) -> MeanLabels:
        if span not in self.known:
            self.known[span] = self._measured(*span)
        return self.known[span]

    def _measured(self, n_cols: int, n_first: int, n_rows: int) -> MeanLabels:
        """Fit a fixed order to slices of so many columns."""
        training, slices = dense_of(self.config), self.slices
        n_each, start = training.n_prior_slices, cast(Initial, n_first)
        if n_cols != slices.n_cols:
            n_each = max(n_each, min(_MOST_COARSER, n_each * slices.n_cols**2 // n_cols**2))
            slices = coarser_slices(slices.sample(n_each), n_cols)
        elif not training.starts:
            start = self.config.acquisition.start
        where = (training, slices, self.reconstructor)
        return mean_labels(*where, start=start, horizon=n_rows, n_slices=n_each, device=self.device)

    def _in_units(self, span: _Span, units: Float[Tensor, " unit"]) -> Float[Tensor, "step col"]:
        found, measured = self._of(span), torch.arange(span.n_rows, device=self.device)
        share = self.slices.n_cols / span.n_cols
        row = row_of(measured + span.n_first, self.config.spanned[0], len(units), share=share)
        labels = found.labels / units[row, None]
        if dense_of(self.config).completion != "none":
            ranked = Completion.of(found.order, span.n_cols, self.device).ranked
            labels = labels - _LATER * ranked.argsort() / span.n_cols
        return carried_on(labels)
