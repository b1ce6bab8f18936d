"""Training masks are the paper's: validation masks to the column, training masks in law."""

import numpy as np
import pytest
import torch

from golden_numbers import GOLDEN, Golden
from kscout.config import RECONSTRUCTOR_TRAININGS
from kscout.training.masks import MaskDistribution

PAPER = RECONSTRUCTOR_TRAININGS["paper-unet"]


def paper_masks(n_cols: int) -> MaskDistribution:
    return MaskDistribution(n_cols, PAPER.accelerations, PAPER.center_fractions)


@pytest.mark.parametrize("n_cols", [128, 256])
def test_validation_masks_are_the_references(golden: Golden, n_cols: int) -> None:
    with np.load(GOLDEN / "masks.npz") as arrays:
        names = [str(name) for name in arrays["recontrain_names"]]
    expected = golden("masks", f"recontrain_r{n_cols}").bool()
    assert torch.equal(paper_masks(n_cols).of_volumes(names), expected)


def test_expected_number_of_columns_follows_the_accelerations() -> None:
    n_cols, n_slices = 96, 6000
    masks = paper_masks(n_cols).draw(n_slices, 0)
    expected = sum(n_cols / a for a in PAPER.accelerations) / len(PAPER.accelerations)
    # Six standard errors: counts spread by less than 7 columns.
    assert abs(masks.sum(dim=1).double().mean() - expected) < 6 * 7 / n_slices**0.5


def test_the_center_is_always_measured_and_every_other_column_sometimes() -> None:
    frequency = paper_masks(63).draw(2000, "any").double().mean(dim=0)
    assert (frequency[28:36] == 1).all()
    assert (frequency[:20] > 0.02).all() and (frequency[-20:] < 0.25).all()


def test_masks_depend_on_the_key_alone() -> None:
    masks = paper_masks(31)
    assert torch.equal(masks.draw(5, 3, "masks", 1), masks.draw(5, 3, "masks", 1))
    assert not torch.equal(masks.draw(5, 3, "masks", 1), masks.draw(5, 3, "masks", 2))
    assert not torch.equal(masks.draw(5, 3, "masks", 1), masks.draw(5, 4, "masks", 1))


def test_a_center_beyond_the_acceleration_leaves_the_center_alone() -> None:
    masks = MaskDistribution(32, [8.0], [0.5]).draw(7, 0)
    assert torch.equal(masks.sum(dim=1), torch.full((7,), 16))
