"""`benchmarks/dense.py`: every arm is a training that exists, and a record is made once."""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training_stores import blob_store
from typer.testing import CliRunner

from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.cli import app
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import DataError
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.files import write_json
from kscout.physics.fourier import opposite
from kscout.policies.column import ColumnPolicy
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.runs import Progress
from kscout.training.augmentation import mirrored

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = [
    *("policy.width=12", "policy.n_heads=2", "policy.n_layers=1", "policy.channels=[8]"),
    *("policy.image_channels=[8]", "training.n_prior_slices=4", "training.batch_size=11"),
    *("acquisition.n_initial=2", "acquisition.horizon=2", "acquisition.size=16"),
    *("training.n_best=2", "training.n_random=2", "training.n_repeats=0"),
]


@pytest.fixture(scope="module")
def dense() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("dense")
    sys.path.remove(str(BENCHMARKS))


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


def test_a_table_without_records_says_so(dense: ModuleType, tmp_path: Path) -> None:
    records = importlib.import_module("dense_records")
    assert records.heads(tmp_path) == records.unseen(tmp_path) == "Not run yet.\n"


@pytest.mark.slow
def test_an_arm_is_trained_once_and_evaluated(
    dense: ModuleType,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dense, "_N_TIMED", (1, 2))
    asked, evaluate = [], dense.evaluate

    def watched(names: list[object], *given: object, **more: object) -> object:
        asked.append(names)
        return evaluate(names, *given, **more)

    monkeypatch.setattr(dense, "evaluate", watched)
    out = tmp_path / "records"
    command = ["--data", str(store), "--reconstructor", "zero-filled", "--out", str(out)]
    command += ["--device", "cpu", "--minutes", "0", "--seeds", "0,1"]
    tiny = [word for change in TINY for word in ("--set", change)]
    dense.main([*command, *tiny])
    # The oracle costs most, and all records share it.
    assert sum("oracle" in names for names in asked) == 1
    found = [json.loads((out / f"column-blobs-knee-base-seed{n}.json").read_text()) for n in (0, 1)]
    assert [one["seed"] for one in found] == [0, 1]
    assert found[0]["marks"].keys() == {"fixed", "na-oracle", "oracle"}
    assert found[0]["ssim"] <= found[0]["marks"]["oracle"] + 1e-6
    records = importlib.import_module("dense_records")
    (seeds,) = records.kinds_of(records.read_records(out))
    assert [(one.arm, one.seed, one.ssim) for one in seeds] == [
        ("column", one["seed"], one["ssim"]) for one in found
    ]
    assert found[0]["n_epochs"] == 1 and found[0]["n_lockstep"] == 2
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("{")]) == 2
    start = out / "runs" / "column-blobs-knee-base-seed0"
    dense.main([*command, *tiny, "--start", str(start), "--label", "on", "--seeds", "2"])
    on = next(x for x in records.read_records(out) if x.seed == 2)
    assert (on.start, on.marks) == (start.name, found[0]["marks"])
    assert f"on from `{start.name}`" in records.table(out)
    capsys.readouterr()
    # What is there is not run again, though it could not be: the settings are missing.
    dense.main(command)
    dense.main([*command, "--list"])
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == list(dense.ARMS)


@pytest.mark.parametrize("n_slices", [11, 88])
def test_minutes_are_filled_with_epochs_of_a_small_store(
    dense: ModuleType, monkeypatch: pytest.MonkeyPatch, n_slices: int
) -> None:
    monkeypatch.setattr(dense, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    now = [0.0]

    def trained(configs: list[Any], *_: object, on_step: Any, **__: object) -> None:
        training = configs[0].training
        n_steps = -(-n_slices // training.batch_size)
        for epoch, step in product(range(1, training.n_epochs + 1), range(1, n_steps + 1)):
            now[0] += 0.5
            on_step(Progress(epoch, training.n_epochs, step, n_steps))
            if step == n_steps:
                on_step(Progress(epoch, training.n_epochs, step, n_steps, {"epoch": epoch}))

    monkeypatch.setattr(dense, "train_policies", trained)
    config = dense.config_of("column", "knee-base", [*TINY, "training.patience=1"])
    wanted = argparse.Namespace(reconstructor="zero-filled", start=None, device="cpu", minutes=2)
    n_steps = n_slices / 11
    assert dense.epochs_that_fit([config], None, wanted) == 240 / n_steps


@pytest.mark.parametrize(
    "change",
    [
        {"plan": {"n_initial": 3}},
        {"plan": {"horizon": 3}},
        {"plan": {"protocol": "blind"}},
        {"initial": "1,9"},
        {"network": 1},
    ],
)
def test_marks_are_of_what_was_asked_for(
    dense: ModuleType,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    network = tmp_path / "network.safetensors"
    wanted = argparse.Namespace(data=store, test=None, preset="knee-base", limit=2)
    wanted.reconstructor, wanted.out = str(network), tmp_path / "out"
    plan = {"n_initial": 2, "horizon": 2, "n_trajectories": 1}
    found = []
    for own in ({}, change):
        torch.manual_seed(own.get("network", 0))
        reconstruction.save(network, UNet(n_channels=2, n_pools=1))
        setting = EvaluationSetting(
            AcquisitionPlan(**{**plan, **own.get("plan", {})}),
            initial=own.get("initial"),
            **{"limit": 2, "device": "cpu", "n_examples": 0},
        )
        found.append(dense.marks(wanted, setting))
        expected = evaluate(list(found[-1]), store, network, setting).found
        assert found[-1] == {one.policy: one.ssim for one in expected.policies}
    assert found[0] != found[1]
    monkeypatch.setattr(dense, "evaluate", None)
    assert dense.marks(wanted, setting) == found[1]


@pytest.mark.slow
def test_a_policy_is_evaluated_from_the_columns_that_its_training_started_from(
    dense: ModuleType, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "_N_TIMED", (1, 2))
    start = ["--set", "acquisition.initial=1,9"]
    changes = [word for change in TINY for word in ("--set", change)]
    words = ["--data", str(store), "--reconstructor", "zero-filled", "--device", "cpu"]
    dense.main([*words, *changes, *start, "--minutes", "0", "--out", str(tmp_path)])
    path = tmp_path / "column-blobs-knee-base-seed0.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    plan = AcquisitionPlan(n_initial=2, horizon=2, n_trajectories=1)
    setting = EvaluationSetting(plan, initial="1,9", device="cpu", n_examples=0)
    names = [f"dense={tmp_path / 'runs' / path.stem}", "fixed", "na-oracle", "oracle"]
    found = evaluate(names, store, "zero-filled", setting).found
    expected = {one.policy: one.ssim for one in found.policies}
    assert {"dense": record["ssim"], **record["marks"]} == pytest.approx(expected)
    assert start[1] in record["changes"]


def test_each_head_is_left_out_in_turn(dense: ModuleType) -> None:
    leave_one_out = importlib.import_module("leave_one_out")
    heads = [Path(f"heads/{name}.nii.gz") for name in "abcd"]
    found = [leave_one_out.sources_without(heads, head) for head in heads]
    assert [leave_one_out.name_of(order[-1]) for order in found] == list("abcd")
    assert [leave_one_out.name_of(order[-2]) for order in found] == list("dabc")
    assert all(set(order) == set(heads) for order in found)
    cut, array = Path("cut/a.nii.gz"), Path("else/x.npy")
    for own, taken in (([], heads[0]), ([cut], cut)):
        wanted = argparse.Namespace(cut=own, plain=[array], imports=["cut", "resampled"])
        expected = [(taken, "cut"), (heads[0], "resampled"), (array, "cut")]
        assert leave_one_out.plain_imports(wanted, heads[0]) == expected
        wanted.imports = ["resampled"]
        assert leave_one_out.plain_imports(wanted, heads[0]) == expected[1:2]


def test_stores_of_heads_are_those_that_were_asked_for(
    dense: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_one_out = importlib.import_module("leave_one_out")
    heads = [tmp_path / f"{name}.npy" for name in "abcd"]
    axes = np.meshgrid(*(np.linspace(-1.2, 1.2, n) for n in (60, 75, 90)), indexing="ij")
    for head in heads:
        np.save(head, np.float32(sum(axis**2 for axis in axes) < 1))
    told = []

    def run(words: list[str], **_: object) -> object:
        done = CliRunner().invoke(app, words[3:])
        told.append(str(done.exception or ""))
        return SimpleNamespace(returncode=done.exit_code)

    monkeypatch.setattr(leave_one_out, "subprocess", SimpleNamespace(run=run))
    given = {"out": tmp_path / "out", "heads": heads[:3], "size": 64, "volumes": "1,1,1"}
    wanted = argparse.Namespace(**given)
    paths = [leave_one_out.made_store(wanted, heads[2]) for _ in range(2)]
    assert paths == [tmp_path / "out" / "stores" / "heads-without-c"] * 2
    for change in ({"size": 72}, {"volumes": "2,1,1"}, {"heads": heads[1:]}):
        with pytest.raises(SystemExit):
            leave_one_out.made_store(argparse.Namespace(**{**given, **change}), heads[2])
        name = next(iter(change)).replace("heads", "sources")
        assert f"heads-without-c exists already ({name} is " in told[-1]
    # A file that is imported plainly, likewise.
    store = tmp_path / "out" / "stores" / "plain-cut-a"
    size = ("--size", 72, "--pad", 72, "--absolute")
    leave_one_out.kscout("data", "import", heads[0], *size, "--out", store)
    with pytest.raises(DataError, match="size is 72 there and 64 here"):
        leave_one_out.acquire_plainly(wanted, heads[0], "cut", tmp_path / "run", paths[0])


def test_tables_tell_seeds_heads_and_files_apart(dense: ModuleType, tmp_path: Path) -> None:
    records = importlib.import_module("dense_records")
    own = {
        **{"arm": "zoom", "data": "heads-without-a", "preset": "knee-base", "minutes": 3.0},
        **{"reconstructor": "heads-unet", "changes": [], "n_epochs": 2, "n_lockstep": 2},
        **{"train_s": 90.0, "n_reconstructions": 180_000, "val_ssim": [0.8], "n_slices": 9},
        **{"n_volumes": 3, "marks": {"fixed": 0.8, "na-oracle": 0.81, "oracle": 0.83}},
        **{"device": "a GPU", "n_parameters": 1000},
    }
    for seed, gain, interval in ((0, 0.02, [0.01, 0.03]), (1, 0.03, [-0.01, 0.05])):
        told = {"seed": seed, "ssim": 0.8 + gain, "difference_to_fixed": gain, "start": "knees"}
        told |= {"gap_closed": (gain - 0.01) / 0.02, "interval": interval}
        write_json(tmp_path / f"zoom-heads-without-a-knee-base-seed{seed}.json", {**own, **told})
    other = {"arm": "column", "seed": 1, "ssim": 0.8325, "difference_to_fixed": 0.03}
    other |= {"start": "knees", "gap_closed": None, "interval": None}
    for minutes in (3.0, 4.0):
        write_json(tmp_path / f"column-{minutes}-seed1.json", {**own, **other, "minutes": minutes})
    for file, how, gain in (
        ("a.nii.gz", "cut", 0.01),
        ("b.nii", "cut", -0.02),
        ("b.nii", "x", 0.0),
    ):
        run = "zoom-heads-without-a-knee-base-seed0"
        plain = {"file": file, "import": how, "run": run, "n_slices": 5}
        plain |= {"ssim": {"fixed": 0.7}, "difference_to_fixed": gain}
        write_json(tmp_path / f"plain-{how}-{file}-by-{run}.json", plain)
    text = records.table(tmp_path)
    assert "| 0, 1 | .8250 ± .0071 | 75 % (50 to 100) | +.0250 (-.0100 to .0500) |" in text
    assert "| .8000 | .8100 | .8300 | 1.5 | 2 | 1,000 | 2,000 |" in text
    assert (
        "Not run: knee-4x knee-base `column` (0, 1, 2), knee-4x knee-base `large` (0, 1, 2)" in text
    )
    assert "seed and minutes or epochs that were asked for: `zoom` -.0025.\n" in text
    assert "| +.0250 (-.0100 to .0500) | +.0100 | - |" in records.heads(tmp_path)
    assert "| a | `zoom`, on from `knees`, 0, 1 |" in records.heads(tmp_path)
    assert records.unseen(tmp_path).count("b.nii") == 2 and "a.nii" not in records.unseen(tmp_path)
    assert "| `zoom` | b.nii | cut | 5 | .7000 | -.0200 |" in records.unseen(tmp_path)


def test_a_record_tells_how_many_policies_were_weighed_beside_which_unet(dense: ModuleType) -> None:
    records = importlib.import_module("dense_records")
    found = {one.name for one in records.read_records(records.HEADS) if one.arm == "weighed"}
    assert found == {"weighed", "weighed of 3", "weighed, own reconstruction"}
    assert {one.name for one in records.read_records() if one.arm == "column"} == {"column"}


def test_a_look_ahead_is_told_where_it_was_tried(dense: ModuleType, tmp_path: Path) -> None:
    records = importlib.import_module("ceiling_records")
    marks = {"na-oracle": 0.80, "oracle": 0.84}
    assert records.look_ahead(tmp_path, marks) == ""
    own = {"policy": "some", "weights": "fitted", "alone": 0.81, "ssim": 0.82, "difference": 0.01}
    own |= {"interval": [-0.001, 0.02], "by_step": [0.001, -0.003, 0.01]}
    told = {"columns": 8, "n_fit": 5, "policies": [own]}
    write_json(tmp_path / "look_ahead.json", told)
    text = records.look_ahead(tmp_path, marks)
    line = "| `some` | fitted | .8100, 25 % | .8200, 50 % | +.0100 (-.0010 to .0200) | -.0030 |"
    assert line in text and "0 of 1 have an interval above zero." in text
    assert records.look_ahead(tmp_path, {**marks, "look-ahead some": 0.82}) == ""


@pytest.mark.slow
def test_speed_counts_every_column_tried(
    dense: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = importlib.import_module("dense_speed")
    monkeypatch.setattr(speed, "N_TIMED", (1, 4))
    blob_store(tmp_path / "store", n_rows=16, n_cols=16, n_train=5)
    words = ["--data", str(tmp_path / "store"), "--reconstructor", "zero-filled", "--device", "cpu"]
    words += [word for change in TINY for word in ("--set", change)]
    words += ["--set", "training.batch_size=1", "--set", "training.n_epochs=1"]
    speed.main([*words, "--record", str(tmp_path / "record.json")])
    (found,) = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))["trainings"]
    # One slice, two steps, four columns at each.
    assert found["columns_per_s"] * found["step_ms"] == pytest.approx(1e3 * 8)
    assert "| 1 |" in speed.table(tmp_path / "record.json")


def test_means_over_mirrored_views_are_those_of_a_mirrored_slice(
    dense: ModuleType, store: Path, tmp_path: Path
) -> None:
    averaged = importlib.import_module("averaged")
    torch.manual_seed(0)
    sizes = {"n_cols": 16, "horizon": 2, "n_initial": 2}
    policy = ColumnPolicy(
        width=12, n_heads=2, n_layers=1, channels=[8], image_channels=[8], **sizes
    )
    torch.nn.init.normal_(policy.head.weight)
    policy.is_stochastic, policy.gain_units = False, (2.0, 3.0)
    batch = Store.open(store).split("test").batch(torch.tensor([0, 1]))
    found = []
    for slices in (batch, mirrored(batch, torch.tensor([True, True]))):
        state = (simulator := Simulator(slices, ZeroFilled())).start(3)
        seen = simulator.observe(policy, state, n_left=2)
        found.append(
            [averaged.Averaged([policy], views)(seen) for views in averaged.VIEWS.values()]
        )
    # The start, three central columns, is its own mirror image.
    order = opposite(16, torch.device("cpu"))
    same = [torch.allclose(a, b[:, order], atol=1e-4) for a, b in zip(*found, strict=True)]
    assert same == [True, False, True]
    policies.save(tmp_path / "some.safetensors", policy)
    words = ["--data", str(store), "--reconstructor", "zero-filled", "--limit", "2"]
    words += ["--n-initial", "2", "--steps", "2", "--record", str(tmp_path / "record.json")]
    for names in (["one"], ["one", "two"]):
        given = [w for x in names for w in ("--policy", f"{x}={tmp_path / 'some.safetensors'}")]
        averaged.main([*words, *given, "--device", "cpu"])
    text = averaged.table(tmp_path / "record.json")
    assert text.count("| `one` |") == 3 and "| `two` | both policies |" in text
