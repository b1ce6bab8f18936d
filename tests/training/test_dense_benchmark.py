"""`benchmarks/dense.py`: every arm is a training that exists, and a record is made once."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from training_stores import blob_store

from kscout.data.store_writer import StoreWriter

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = [
    *("policy.width=12", "policy.n_heads=2", "policy.n_layers=1", "policy.channels=[8]"),
    *("policy.image_channels=[8]", "training.n_prior_slices=4", "training.batch_size=11"),
    *("acquisition.n_initial=2", "acquisition.horizon=2", "acquisition.size=16"),
    *("training.n_best=2", "training.n_random=2"),
]


@pytest.fixture(scope="module")
def dense() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("dense")
    sys.path.remove(str(BENCHMARKS))


def test_every_arm_has_settings_and_at_most_four_million_parameters(dense: ModuleType) -> None:
    for arm in dense.ARMS:
        config = dense.config_of(arm, "knee-base")
        assert arm == "conv" or dense.n_parameters(config, 128, 128) <= 4_000_000
    page = (BENCHMARKS.parent / "docs" / "dense.md").read_text(encoding="utf-8")
    assert all(f"`{arm}`" in page for arm in dense.ARMS)
    assert len({repr(dense.config_of(arm, "knee-base")) for arm in dense.ARMS}) == len(dense.ARMS)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a test split."""
    made = blob_store(tmp_path / "made", n_rows=16, n_cols=16)
    with StoreWriter(tmp_path / "blobs", {"made by": "tests"}) as writer:
        for split, own in (("train", "train"), ("val", "val"), ("test", "val")):
            slices = made.split(own)
            for volume in dict.fromkeys(slices.volumes):
                images = slices.of_volumes(volume).magnitudes().numpy()
                writer.append(split, f"{split}-{volume}", images)
        return writer.finish().path


@pytest.mark.slow
def test_an_arm_is_trained_once_and_evaluated(
    dense: ModuleType,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense, "_N_TIMED", (1, 2))
    out = tmp_path / "records"
    command = ["--data", str(store), "--reconstructor", "zero-filled", "--out", str(out)]
    command += ["--device", "cpu", "--minutes", "0", "--seeds", "0,1"]
    dense.main([*command, *(word for change in TINY for word in ("--set", change))])
    found = [json.loads((out / f"column-blobs-knee-base-seed{n}.json").read_text()) for n in (0, 1)]
    assert [one["seed"] for one in found] == [0, 1]
    assert found[0]["marks"].keys() == {"fixed", "na-oracle", "oracle"}
    assert found[0]["ssim"] <= found[0]["marks"]["oracle"] + 1e-6
    assert found[0]["n_epochs"] == 1 and found[0]["n_lockstep"] == 2
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("{")]) == 2
    # What is there is not run again, though it could not be: the settings are missing.
    dense.main(command)
    dense.main([*command, "--list"])
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == list(dense.ARMS)


def test_each_head_is_left_out_in_turn(dense: ModuleType) -> None:
    leave_one_out = importlib.import_module("leave_one_out")
    heads = [Path(f"heads/{name}.nii.gz") for name in "abcd"]
    found = [leave_one_out.sources_without(heads, head) for head in heads]
    assert [leave_one_out.name_of(order[-1]) for order in found] == list("abcd")
    assert [leave_one_out.name_of(order[-2]) for order in found] == list("dabc")
    assert all(set(order) == set(heads) for order in found)
