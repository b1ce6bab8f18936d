"""`benchmarks/leave_one_out.py`: a head is acquired as the policy was trained."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_stores import blob_store

from kscout import policies
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.policies.fixed import FixedOrder
from kscout.policies.weighed import WeighedPolicy
from kscout.runs import read_run
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


def test_a_policy_that_imagines_other_heads_is_trained_and_weighed(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, store = scripts("leave_one_out"), heads_store(tmp_path / "heads-without-a")
    few = ["acquisition.n_initial=2", "acquisition.horizon=3", "acquisition.size=16"]
    order = tmp_path / "order.safetensors"
    policies.save(order, FixedOrder(n_cols=16, order=[4, 10, 12]))
    given = {"out": tmp_path, "size": 16, "device": "cpu", "reconstructor": "zero-filled"}
    given |= {"preset": "knee-base", "arm": "weighed", "minutes": 1, "seeds": "0,1", "epochs": 1}
    given |= {"imagine_epochs": 1, "start": None, "beside": [str(order)], "cut": [], "plain": []}
    given |= {"imagine_preset": None, "imports": ["cut"], "label": None}
    imagined = ["policy.n_channels=4", "policy.n_pools=1", "policy.n_draws=2"]
    given["imagine_set"] = [*few, *imagined, "training.n_prior_slices=4", "training.n_validated=1"]
    given["set"] = [*few, "training.n_slices=3", "training.n_best=2", "training.n_validated=1"]
    np.save(tmp_path / "a.npy", store.split("val").magnitudes().numpy())
    script.leave_out(argparse.Namespace(**given), tmp_path / "a.npy", store.path)
    for seed in range(2):
        name = f"weighed-heads-without-a-knee-base-seed{seed}"
        record = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        run = tmp_path / "runs" / f"imagine-zoom-heads-without-a-knee-base-seed{seed}"
        assert record["changes"][-1] == f'policy.members=["{run}","{order}"]'
        assert read_run(run).config["training"]["seed"] == seed
        policy = policies.load(tmp_path / "runs" / name)
        assert isinstance(policy, WeighedPolicy)
        assert [one["component"] for one in policy.members] == ["imagine", "fixed"]
        assert (tmp_path / f"plain-cut-a-by-{name}.json").exists()
    # The same members for another acquisition.
    given |= {"preset": "knee-long", "imagine_preset": "knee-base", "imports": [], "seeds": "1"}
    given |= {"label": "weighed-of-2"}
    given["set"] = [*given["set"], "acquisition.n_initial=1", "acquisition.horizon=4"]
    script.leave_out(argparse.Namespace(**given), tmp_path / "a.npy", store.path)
    name = "weighed-of-2-heads-without-a-knee-long-seed1"
    record = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert record["n_draws"] == 2 and (tmp_path / "runs" / name).is_dir()
    assert record["changes"][-1] == f'policy.members=["{run}","{order}"]'
    assert not (tmp_path / f"plain-cut-a-by-{name}.json").exists()
    with pytest.raises(SystemExit):
        script.main(["--heads", "a.nii", "--imagine-epochs", "1", "--out", str(tmp_path)])
    assert "--imagine-epochs is for --arm weighed, and the arm is zoom" in capsys.readouterr().err


def heads_store(path: Path) -> Store:
    """Return a store with a test split."""
    made = blob_store(path.with_name("made"), n_rows=16, n_cols=16)
    with StoreWriter(path, {"made by": "tests"}) as writer:
        for split, own in (("train", "train"), ("val", "val"), ("test", "val")):
            writer.append(split, f"{split}-head", made.split(own).magnitudes().numpy())
        return writer.finish()
