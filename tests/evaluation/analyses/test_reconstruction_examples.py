"""Examples of chosen slices under policies."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kscout.acquisition.plan import Plan
from kscout.data.slices import SliceSet
from kscout.errors import DataError
from kscout.evaluation.analyses.examples import (
    read_examples,
    reconstruction_examples,
    save_examples,
)
from kscout.evaluation.running.entries import EvaluationEntry
from kscout.evaluation.running.trajectories import choose_slices
from kscout.metrics import ssim
from kscout.policies.fixed import CenterOut
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled


def test_examples_show_what_was_measured_and_scored(test_slices: SliceSet, tmp_path: Path) -> None:
    entries = [
        EvaluationEntry("random", 0, Random(), 0),
        EvaluationEntry("center-out", 0, CenterOut(n_cols=13), 0),
    ]
    chosen = choose_slices(test_slices, ["b:1", "2"])
    plan = Plan(start=3, horizon=4, batch_size=1, protocol="paper")
    examples = reconstruction_examples(entries, chosen, ZeroFilled(), plan)
    assert [(e.volume, e.slice, e.policy) for e in examples] == [
        ("b", 1, "random"),
        ("b", 1, "center-out"),
        ("a", 2, "random"),
        ("a", 2, "center-out"),
    ]
    batch = chosen.batch(torch.tensor([0]))
    for example in examples[:2]:
        assert example.mask.sum() == 7
        mask = torch.from_numpy(example.mask)[None]
        found = ZeroFilled()(batch.kspace, mask)
        image = found.image * batch.target_std[:, None, None] + batch.target_mean[:, None, None]
        np.testing.assert_allclose(example.image, image[0], atol=1e-5)
        score = ssim(image, batch.target, data_range=batch.data_range)
        assert example.ssim == pytest.approx(score.item(), abs=1e-5)
    save_examples(tmp_path / "examples.npz", examples)
    assert read_examples(tmp_path / "examples.npz")[3].title == "center-out\na:2"
    with np.load(tmp_path / "examples.npz") as stored:
        assert stored["image"].shape == (4, 18, 13)
        assert stored["policy"].tolist()[1] == "center-out"


@pytest.mark.parametrize("name", ["7", "-1", "a:9", "z:0", "x"])
def test_unknown_slice_says_how_to_name_one(test_slices: SliceSet, name: str) -> None:
    with pytest.raises(DataError, match=r"position 0\.\.6 or VOLUME:NUMBER, e\.g\. a:0"):
        choose_slices(test_slices, [name])
