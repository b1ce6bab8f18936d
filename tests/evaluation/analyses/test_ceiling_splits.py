"""A ceiling is fitted on one split and scored on another: a store has to have both."""

from pathlib import Path

import numpy as np
import pytest

from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.ceiling import Ceiling


@pytest.mark.parametrize(
    ("splits", "advice"),
    [
        (["train"], "; import at least 3 volumes"),
        (["test"], "; import at least 3 volumes"),
        (["val", "test"], "; import at least 3 volumes"),
        (["train", "val"], "; score what is there with --split val"),
    ],
)
def test_a_store_without_both_splits_is_refused_with_what_to_do(
    tmp_path: Path, splits: list[str], advice: str
) -> None:
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        for split in splits:
            writer.append(split, split, np.eye(9, 11, dtype=np.float32)[None])
        store = writer.finish().path
    ceiling = Ceiling(data=store, reconstructor="zero-filled", n_initial=3, steps=2)
    expected = rf"needs two splits, train .* and test to score, .*has: {', '.join(splits)}{advice}"
    with pytest.raises(DataError, match=expected) as refusal:
        ceiling.compute(["random"], out=tmp_path)
    assert "--split train" not in str(refusal.value)


def test_training_slices_are_not_scored() -> None:
    with pytest.raises(ConfigError, match=r"needs two splits.*give --split test or val"):
        Ceiling(split="train")
