"""Acquire columns at random: the baseline that everything should beat."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from kscout.core import Observation, Policy


@final
class Random(Policy):
    """Draws uniformly among the unmeasured columns."""

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return seen.image.new_zeros(seen.mask.shape)
