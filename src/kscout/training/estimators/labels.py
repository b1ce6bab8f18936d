"""What policies of dense gains learn: the gains of columns, at first their means along an order."""

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Policy

GAINS = "ssim"
"""The metric whose gains evaluations stop by."""


def dense_of(config: PolicyConfig) -> DenseTraining:
    """Return the settings of a training by dense gains."""
    assert isinstance(config.training, DenseTraining)
    return config.training


def learned_from(start: Policy | None) -> str:
    """Return the metric that a trained policy learned the gains of; "" where that is unknown."""
    if start is None:
        return ""
    return start.labels or (GAINS if start.gain_units else "")


def carried_on(gains: Float[Tensor, "step col"]) -> Float[Tensor, "step col"]:
    """Fill in the gain of a column where the order has measured it, and a policy may not have.

    It gains what it did before, in the units that gains are given in, and no less than the best
    that is left, as it was the best before that. Columns that were measured from the start gain
    as much as any, for a policy that starts from fewer.
    """
    filled: list[Tensor] = []
    for row in gains:
        best = row.nan_to_num(-torch.inf).amax()
        before = torch.maximum(filled[-1], best) if filled else best
        filled.append(torch.where(row.isnan(), before, row))
    return torch.stack(filled)
