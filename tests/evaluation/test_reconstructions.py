"""Reconstructions compared under the same masks, and told in a table and pictures."""

import numpy as np
import pytest
import torch

from kscout.data.slices import SliceSet
from kscout.evaluation.reconstructions import (
    ReconstructionComparison,
    ReconstructionPictures,
    ReconstructionScores,
    compare_reconstructions,
    reconstruction_section,
)
from kscout.figures.blocks import Prose
from kscout.metrics import ssim
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.masks import MaskDistribution

N_ROWS, N_COLS = 16, 24


@pytest.fixture
def slices(generator: torch.Generator) -> SliceSet:
    images = torch.rand(5, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a", "a", "b", "b", "c"])


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_scores_are_those_of_the_methods_under_one_mask_per_volume(
    slices: SliceSet, protocol: str
) -> None:
    methods = {"tv": "total-variation", "plain": "zero-filled"}
    found = compare_reconstructions(methods, slices, [3.0], center_fraction=0.25, protocol=protocol)
    assert (found.names, found.accelerations) == (["tv", "plain"], [3.0])
    masks = MaskDistribution(N_COLS, [3.0], [0.25]).of_volumes(slices.volumes)
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    batch = slices.batch(torch.arange(len(slices)))
    image = batch.unnormalized(ZeroFilled()(batch.kspace, masks), protocol)
    expected = ssim(image, batch.target, data_range=batch.data_range)
    score, (pictures,) = found.score("plain", 3.0), found.pictures
    assert score is not None and score.ssim == pytest.approx(float(expected.mean()))
    place = int(expected.argsort()[2])
    assert pictures.title.startswith(f"{slices.volumes[place]}, slice {slices.slices[place]}")
    assert np.allclose(pictures.images["plain"], image[place])


def test_reconstructions_are_ranked_per_acceleration() -> None:
    scores = [
        ReconstructionScores("zero-filled", 4, 0.6, 24.0, 0.1),
        ReconstructionScores("unet", 4, 0.7, 27.0, 0.05, (0.69, 0.71)),
        ReconstructionScores("unet", 8, 0.65, 25.0, 0.07),
    ]
    image = np.random.default_rng(0).random((9, 11))
    pictures = [ReconstructionPictures("Slice 1", image, {"unet": image})]
    section = reconstruction_section(ReconstructionComparison(scores, pictures, "blind"))
    prose, table, drawing = section.blocks
    assert isinstance(prose, Prose)
    assert "At 4× **unet** is best with SSIM 0.7000, 0.1000 above zero-filled" in prose.text
    assert table.rows[0].cells[4:] == (None, None, None)  # type: ignore[union-attr]
    assert "protocol blind" in table.note  # type: ignore[union-attr]
    assert drawing.name == "reconstructions-1"  # type: ignore[union-attr]
