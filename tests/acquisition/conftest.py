"""One slice to be acquired."""

import pytest
import torch

from kscout.core import SliceBatch
from kscout.data.slices import SliceSet
from tiny_sessions import N_COLS, N_ROWS


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(1, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a"]).batch(torch.tensor([0]))
