"""Random numbers seeded by purpose, independent of batch size, device and workers.

Every draw that affects a result (actions, masks, shuffles) uses a CPU generator with a key such as
`(seed, "actions", epoch)`, for a complete dataset at once, and moves to the device in one
transfer.
"""

import hashlib
import operator
from typing import SupportsIndex

import torch
from jaxtyping import Int
from torch import Tensor

from kscout.errors import ConfigError


def keyed_generator(*key: SupportsIndex | str) -> torch.Generator:
    """Return a CPU generator seeded by the key, independent of the types of its numbers."""
    digest = hashlib.sha256(repr(tuple(_plain(part) for part in key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def slices_of_round(
    seed: int, epoch: int, n_episodes: int, *, n_slices: int, purpose: str = "order"
) -> Int[Tensor, " n"]:
    """Return the slices of a round: rounds are parts of shuffled passes over all slices."""
    begin = (epoch - 1) * n_episodes
    passes = [
        torch.randperm(n_slices, generator=keyed_generator(purpose, seed, number))
        for number in range(begin // n_slices, (begin + n_episodes - 1) // n_slices + 1)
    ]
    first = begin % n_slices
    return torch.cat(passes)[first : first + n_episodes]


def _plain(part: SupportsIndex | str) -> int | str:
    if isinstance(part, str):
        return str(part)
    try:
        return int(operator.index(part))
    except TypeError as error:
        raise ConfigError(
            f"{part!r} cannot seed random numbers; give seeds as integers, e.g. 0"
        ) from error
