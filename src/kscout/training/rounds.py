"""Which slices a round of acquisitions takes, where rounds do not coincide with passes."""

import torch
from jaxtyping import Int
from torch import Tensor

from kscout.randomness import keyed_generator


def slices_of_round(
    seed: int, epoch: int, n_episodes: int, *, n_slices: int, purpose: str = "order"
) -> Int[Tensor, " n"]:
    """Return the slices that a round acquires: rounds go through shuffled passes of all slices."""
    begin = (epoch - 1) * n_episodes
    passes = [
        torch.randperm(n_slices, generator=keyed_generator(purpose, seed, number))
        for number in range(begin // n_slices, (begin + n_episodes - 1) // n_slices + 1)
    ]
    first = begin % n_slices
    return torch.cat(passes)[first : first + n_episodes]
