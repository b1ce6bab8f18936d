"""Random draws keyed by what they are for, so that batch size, device and workers change nothing.

Every draw that decides a result (actions, masks, shuffles) comes from a CPU generator made here
from a key such as `(seed, "actions", epoch)`, for a whole data set at once, and moves to the
device in one go.
"""

import hashlib

import torch


def keyed_generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator that depends on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
