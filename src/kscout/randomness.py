"""Random draws keyed by what they are for, so that batch size, device and workers change nothing.

Every draw that decides a result (actions, masks, shuffles) comes from a CPU generator made here
from a key such as `(seed, "actions", epoch)`, for a whole data set at once, and moves to the
device in one go.
"""

import hashlib
import operator
from typing import SupportsIndex

import torch
from jaxtyping import Int
from torch import Tensor

from kscout.errors import ConfigError


def keyed_generator(*key: SupportsIndex | str) -> torch.Generator:
    """Return a CPU generator that depends on the key alone, whatever type its numbers have."""
    digest = hashlib.sha256(repr(tuple(_plain(part) for part in key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


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


def _plain(part: SupportsIndex | str) -> int | str:
    if isinstance(part, str):
        return str(part)
    try:
        return int(operator.index(part))
    except TypeError as error:
        raise ConfigError(
            f"{part!r} cannot key random draws; give seeds as whole numbers, e.g. 0"
        ) from error
