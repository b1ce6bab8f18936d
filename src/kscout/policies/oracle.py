"""Oracles, which use the ground truth: upper bounds, not methods."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy, Truth
from kscout.errors import ConfigError

TIE = 1e-6
"""SSIM this close to the best counts as equal, and the lowest column is acquired.

Images are real, so two columns mirrored at DC have equal gains whenever the measured columns are
symmetric. Rounding errors (about 1e-7) would let batch size and device choose between them.
"""

RELATIVE_TIE = 1e-5
"""The same for the squared errors of the spectral oracle, which are equal for mirrored columns."""


def _truth(seen: Observation, name: str) -> Truth:
    if seen.truth is None:
        raise ConfigError(
            f"the {name} was given no ground truth; run it through kscout's acquisition, which "
            "passes it to policies that set needs_target"
        )
    return seen.truth


@final
class Oracle(Policy):
    """Acquires the column with the highest resulting SSIM; its scores are the gains."""

    is_stochastic = False
    needs_target = True
    needs_candidate_scores = True
    gain_units = (1.0,)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        truth = _truth(seen, "oracle")
        scores, now = truth.candidate_scores, truth.score
        if scores is None or now is None:
            raise ConfigError(
                "the oracle was given no candidate scores; run it through kscout's acquisition, "
                "which tries every column for policies that set needs_candidate_scores"
            )
        best = scores.amax(dim=-1, keepdim=True)
        return torch.where(scores >= best - TIE, best, scores) - now[:, None]


@final
class SpectralOracle(Policy):
    """Acquires the column with the largest k-space error of the reconstruction.

    The paper's proxy for the evaluator of Zhang et al. (arXiv 1902.03051), with the true error
    instead of a predicted one.
    """

    is_stochastic = False
    needs_target = True

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        error = _truth(seen, "spectral oracle").kspace_error
        largest = error.masked_fill(seen.mask, 0.0).amax(dim=-1, keepdim=True)
        return torch.where(error >= largest * (1 - RELATIVE_TIE), largest, error)
