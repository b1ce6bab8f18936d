"""Tiny data sets: more rows than columns, volumes of different sizes."""

from pathlib import Path

import pytest
import torch

from kscout.data.slices import SliceSet
from kscout.data.store_writer import StoreWriter


def _images(n_slices: int, seed: int) -> torch.Tensor:
    """Smooth blobs with a little noise: columns differ in worth, and so do slices."""
    generator = torch.Generator().manual_seed(seed)
    rows, cols = torch.arange(18.0)[:, None], torch.arange(13.0)
    place = torch.rand(n_slices, 2, generator=generator) * 6 + 4
    blob = torch.exp(
        -((rows - place[:, 0, None, None]) ** 2 + (cols - place[:, 1, None, None]) ** 2) / 9
    )
    return blob + 0.2 * torch.rand(n_slices, 18, 13, generator=generator)


@pytest.fixture(scope="session")
def test_slices() -> SliceSet:
    volumes = ["a"] * 4 + ["b"] * 2 + ["c"] * 1
    return SliceSet.from_images(_images(7, 1), volumes, name="blobs", split="test")


@pytest.fixture(scope="session")
def train_slices() -> SliceSet:
    return SliceSet.from_images(_images(5, 2), list("ddeee"), name="blobs", split="train")


@pytest.fixture
def store(tmp_path: Path, test_slices: SliceSet, train_slices: SliceSet) -> Path:
    writer = StoreWriter(tmp_path / "store", {"command": "test"})
    for split, slices in (("train", train_slices), ("test", test_slices)):
        for volume in dict.fromkeys(slices.volumes):
            writer.append(split, volume, slices.of_volumes(volume).magnitudes().numpy())
    return writer.finish().path
