"""`benchmarks/leave_one_out.py`: a head is acquired as the policy was trained."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_stores import blob_store

from kscout.data.store import Store
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.training.policy import train_policy

TINY = [
    *("policy.width=12", "policy.n_heads=2", "policy.n_layers=1", "policy.channels=[8]"),
    *("policy.image_channels=[8]", "training.n_prior_slices=4", "training.n_epochs=1"),
    *("training.n_best=2", "training.n_random=2", "training.n_repeats=0", "acquisition.size=16"),
]


@pytest.mark.parametrize(
    ("own", "start"),
    [
        (["acquisition.initial=1,9"], {"n_initial": 2, "initial": "1,9"}),
        (["training.protocol=blind"], {"n_initial": 2, "protocol": "blind"}),
    ],
)
def test_a_plain_import_is_acquired_for_the_columns_of_the_training(
    scripts: Any, tmp_path: Path, own: list[str], start: dict[str, Any]
) -> None:
    script, store = scripts("leave_one_out"), blob_store(tmp_path / "heads", n_rows=16, n_cols=16)
    changes = [*TINY, "acquisition.n_initial=2", "acquisition.horizon=3", *own]
    # Sixteen columns and as many more, as the preset says, are more than there are.
    config = scripts("dense").config_of("column", "knee-base", changes)
    run = train_policy(config, store, "zero-filled", tmp_path / "run", device="cpu").path
    np.save(tmp_path / "a.npy", store.split("val").magnitudes().numpy())
    given = {"out": tmp_path, "size": 16, "device": "cpu", "reconstructor": "zero-filled"}
    wanted = argparse.Namespace(preset="knee-base", **given)
    script.acquire_plainly(wanted, tmp_path / "a.npy", "cut", run, store.path)
    record = json.loads((tmp_path / "plain-cut-a-by-run.json").read_text(encoding="utf-8"))
    plan = {"horizon": 3, "n_trajectories": 1, **start}
    initial = plan.pop("initial", None)
    setting = EvaluationSetting(AcquisitionPlan(**plan), initial=initial, device="cpu")
    where = (Store.open(tmp_path / "stores" / "plain-cut-a").split("train"), "zero-filled", setting)
    found = evaluate([f"dense={run}", "fixed", "oracle"], *where, train=store.split("train")).found
    expected = {one.policy: one.ssim for one in found.policies}
    assert record["ssim"] == pytest.approx(expected)
