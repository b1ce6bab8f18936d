"""Records of joint trainings are made by one command each, and paired by seed and volume."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from joint_arms import MIRRORED, record
from kscout import policies, reconstruction
from kscout.config import JointConfig, to_table
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.evaluation.statistics import bootstrap_interval
from kscout.files import write_json
from kscout.training.joint.train import train_joint
from kscout.weights import fingerprint, read_weights
from nearly import nearly, plain
from training.joint_runs import joint_config
from training.training_stores import blob_store

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NEW = ("--start", "nothing", "--channels", "2", "--set", "reconstructor.n_pools=2")
"""A network to train from nothing."""


@pytest.fixture(scope="module")
def records(scripts: Any) -> ModuleType:
    return scripts("joint_records")


def test_arms_are_paired_by_seed_and_volume(records: ModuleType) -> None:
    fixed = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    dense = [
        record(records, "dense", 0, [0.71, 0.82, 0.63]),
        record(records, "dense", 1, [0.73, 0.80, 0.61]),
        record(records, "dense", 2, [0.0, 0.0, 0.0]),
    ]
    found = records.paired(dense, fixed)
    by_volume = np.array([0.02, 0.01, 0.02])
    assert found.seeds == (0, 1)
    assert found.difference == pytest.approx((0.02 + 2 * 0.01 + 3 * 0.02) / 6)
    slices, names = by_volume[[0, 1, 1, 2, 2, 2]], list("abbccc")
    assert found.interval == pytest.approx(bootstrap_interval(slices, names))
    assert records.paired(dense[2:], fixed) is None
    other = replace(fixed[0], volumes={"a": records.Volume(9, 0.7, 30.0)})
    with pytest.raises(ConfigError, match="scored on other volumes"):
        records.paired(dense, [other])


def test_seeds_are_paired_by_the_names_of_volumes(records: ModuleType) -> None:
    fixed = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    dense = [record(records, "dense", seed, [0.71, 0.83, 0.65]) for seed in (0, 1)]
    turned = [replace(x[1], volumes=dict(reversed(x[1].volumes.items()))) for x in (dense, fixed)]
    found = records.paired([dense[0], turned[0]], [fixed[0], turned[1]])
    assert found == records.paired(dense, fixed)
    names = {"a": "a", "b": "x", "c": "c"}
    renamed, longer = (
        [replace(x, volumes=change(x.volumes)) for x in (dense[1], fixed[1])]
        for change in (
            lambda volumes: {names[k]: v for k, v in volumes.items()},
            lambda volumes: {k: replace(v, n_slices=4) for k, v in volumes.items()},
        )
    )
    for other in (renamed, longer):
        with pytest.raises(ConfigError, match=r"\(seed 1, or 0\); score all on the same store"):
            records.paired([dense[0], other[0]], [fixed[0], other[1]])


def test_rows_of_the_leaderboard_are_of_the_seeds_that_both_have(records: ModuleType) -> None:
    fixed = [record(records, "fixed", seed, [0.7, 0.8, 0.6 + seed / 10]) for seed in (0, 1)]
    dense = [record(records, "dense", seed, [0.76, 0.8, 0.7]) for seed in (1, 2)]
    apart = record(records, "dense", 0, [0.9, 0.9, 0.9], settings={"a": 2})
    rows = records.leaderboard_rows([*fixed, *dense, apart])
    assert [(row.method, row.n_seeds, row.reconstruction) for row in rows] == [
        ("dense", 1, "joint"),
        ("fixed", 2, "joint"),
    ]
    # The reference has a seed more, so that means differ by more than what is paired.
    assert rows[0].difference_to_fixed == pytest.approx(dense[0].ssim - fixed[1].ssim)
    assert rows[0].ssim_mean == dense[0].ssim
    assert rows[1].ssim_mean == pytest.approx(np.mean([one.ssim for one in fixed]))
    assert rows[0].gap_closed == pytest.approx((0.8 - 0.7) / (0.9 - 0.7))
    assert (rows[1].difference_to_fixed, rows[1].interval) == (0.0, None)
    assert records.leaderboard_rows(fixed) == []


def test_the_leaderboard_has_the_rows_of_the_records(scripts: Any, records: ModuleType) -> None:
    script = scripts("leaderboard")
    entered = [row for row in script.read_leaderboard() if row.reconstruction == "joint"]
    expected = script.entered([], records.leaderboard_rows(records.read_records()))
    assert plain(entered) == nearly(expected), "run benchmarks/joint.py --enter"


def test_the_table_lists_what_was_not_run(records: ModuleType) -> None:
    fixed = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    dense = record(records, "dense", 0, [0.71, 0.82, 0.63])
    text = records.table([fixed, dense])
    assert "| `fixed` | 0 | .6833 | reference | .5917 |" in text
    assert "| `dense` | 0 | .7067 | +.0233 (.0100 to .0300) | .6033 | 30.00 | .9000 |" in text
    missing = text.partition("where nothing else is said: ")[2]
    assert text.startswith("knee-base, 16 + 16 columns, 0.8 million parameters, 6,959 slices, ")
    assert missing.startswith("knee-base `fixed` (1, 2), knee-base `dense` (1, 2), knee-8x `fixed`")
    assert "knee-base `fixed`, not mirrored, whose order stays" in missing


def test_an_arm_with_other_settings_of_its_sampler_stands_apart(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    fixed = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    new = [record(records, "dense", seed, [0.72, 0.82, 0.62]) for seed in (0, 1)]
    # The oldest records are of before labels were repeated, and do not say so.
    old = [replace(one, ssim=0.9, sampler={"sampler_every": 5}) for one in new[:1]]
    # Nor do others name what was added since, and was as it is by default.
    added = {"fresh_pool": False, "sampler_precision": "auto"}
    fixed[1] = replace(fixed[1], sampler=added)
    (group,) = records.groups_of([*fixed, *new, *old])
    names = ["fixed", "dense", "dense, n_repeats=0, sampler_every=5"]
    assert list(group) == names
    assert records.leading(group, "dense") == new
    assert [row.method for row in records.leaderboard_rows([*fixed, *new, *old])] == [
        "dense",
        "fixed",
    ]
    labeled = [*fixed, *new, replace(old[0], label="once")]
    for one in labeled:
        write_json(tmp_path / f"{one.stem}.json", to_table(one))
    assert (tmp_path / "knee-base-dense-once-0.json").is_file()
    text = scripts("joint_findings").findings(tmp_path)
    told = [f"{records.shown(name)} minus `fixed`" in text for name in names]
    assert told == [False, True, True]
    assert records.shown(names[2]) == "`dense` (n_repeats=0, sampler_every=5)"
    assert "knee-base `dense` (2)" in records.table(labeled)


def test_two_records_of_one_arm_and_seed_are_refused_by_name(records: ModuleType) -> None:
    fixed = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    twins = [replace(fixed, label=label) for label in (None, "again")]
    words = "knee-base-fixed-0 and knee-base-fixed-again-0 are of the same arm, settings and seed"
    with pytest.raises(ConfigError, match=words):
        records.table(twins)
    assert records.table([fixed, replace(twins[1], seed=1)])


def test_a_command_trains_what_was_recorded_whatever_became_the_default(
    records: ModuleType,
) -> None:
    command = "kscout train joint --method dense --set training.sampler_every=5"
    own = {"sampler": {"sampler_every": 5, "n_best": 8}, "commands": (command, "")}
    old = record(records, "dense", 0, [0.7, 0.8, 0.6], **own)
    assert old.command == f"{command} --set training.n_repeats=0"
    new = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    assert new.command == new.commands[0]
    # Slices were not mirrored before they could be.
    plain = replace(new, settings={"a": 1})
    assert plain.command == f"{new.command} --set training.flips=false"
    told = ("train --set training.turn=8 --set training.flips=false", "")
    settings = {"training": {"flips": False, "turn": 8.0}}
    assert replace(new, settings=settings, commands=told).command == told[0]


def test_costs_on_the_page_are_those_of_the_settings_and_of_records(scripts: Any) -> None:
    horizon, n_left = 16, 128 - 16
    dense, fixed = (JointConfig.of(method).training for method in ("dense", "fixed"))
    n_images = dense.sampler_batch * (1 + horizon * (dense.n_best + dense.n_tried_at_random))
    n_batches = dense.n_sampler_updates
    n_fits = fixed.n_epochs - round(fixed.n_epochs * fixed.random_share)
    n_fitted = n_fits * fixed.n_fit_slices * sum(range(n_left - horizon + 1, n_left + 1))
    speed, labels, repeats = (
        json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))
        for name in (
            "dense_speed.json",
            "dense_results/no-repeats-knee-knee-base-seed0.json",
            "dense_results/repeats-8x256-knee-4x-knee-base-seed0.json",
        )
    )
    one, three = (x["columns_per_s"] for x in speed["trainings"])
    page = (BENCHMARKS.parent / "docs" / "joint.md").read_text(encoding="utf-8")
    for words in (
        f"the network learns from {dense.n_updates * dense.batch_size:,}.",
        f"on {fixed.n_fit_slices} slices whenever it fits, {n_fitted / 1e6:.1f} million in all",
        f"labels {n_batches} batches of {n_images:,} images each",
        f"each, {n_batches * n_images / 1e6:.1f} million,",
        f"sees {n_batches * dense.n_repeats * 256 / 1e6:.1f} million states again",
        f"are {n_batches * (1 + dense.n_repeats):,} steps instead of {2 * n_batches:,}",
        f"measured, {dense.n_batches_kept * dense.sampler_every} updates ago at most",
        f"gains {100 * (three / one - 1):.0f} %",
        f"`random` is the mean of {scripts('joint').N_TRAJECTORIES} draws",
        f"pool {fixed.n_pool // fixed.n_refill * fixed.refill_every} updates after its acquisition",
    ):
        assert words in " ".join(page.split()), words
    seconds = [x["train_s"] / x["n_reconstructions"] for x in (labels, repeats)]
    assert dense.n_repeats == 8 and seconds[1] / seconds[0] == pytest.approx(2, rel=0.1)


def test_other_slices_are_another_comparison(records: ModuleType) -> None:
    fixed = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    told = {"flips": True, "zoom": 1.0, "turn": 0.0, "bend": 0.0}
    alike = replace(fixed, settings={**MIRRORED, "n_train": 6959, "training": told})
    assert alike.key == fixed.key
    for settings in ({**MIRRORED, "n_train": 5}, {"a": 1}):
        assert replace(fixed, settings=settings).key != fixed.key
    # The leaderboard has the comparison whose fixed order is the hardest to beat.
    dense = record(records, "dense", 0, [0.7, 0.8, 0.6])
    few = [replace(x, ssim=0.9, settings={**MIRRORED, "n_train": 5}) for x in (fixed, dense)]
    rows = records.leaderboard_rows([fixed, dense, *few])
    assert [row.ssim_mean for row in rows] == [0.9, 0.9]


def test_a_card_parts_a_lead_by_all_test_slices_where_its_record_tells_of_them(
    scripts: Any, records: ModuleType
) -> None:
    fixed = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    dense = record(records, "dense", 0, [0.71, 0.81, 0.61])
    after = {name: replace(one, ssim=one.ssim - 0.004) for name, one in dense.volumes.items()}
    parted = scripts("zoo_pair").parted_of
    few = " ".join(parted(dense, [fixed]).split())
    assert "worth +0.0100 with this network: 0.8000 on 2 test slices" in few
    whole = " ".join(parted(replace(dense, fitted_after=after), [fixed]).split())
    assert "worth +0.0040 with this network: 0.6933 on 6 test slices" in whole
    assert "Of +0.0100 by which it leads there" in whole
    assert "+0.0040 comes from choosing and +0.0060 from the network" in whole


@pytest.mark.slow
def test_a_pair_enters_the_zoo_rounded_and_with_cards(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    store = blob_store(tmp_path / "store", n_rows=12, n_cols=16)
    config = joint_config("dense", n_updates=4, n_epochs=1, keep_epochs=())
    run = train_joint(config, store, tmp_path / "run", device="cpu")
    for arm, ssim in (("fixed", [0.88, 0.89, 0.87]), ("dense", [0.884, 0.892, 0.871])):
        one = record(records, arm, 0, ssim, validation=(0.7, 0.8))
        write_json(tmp_path / "records" / f"{one.stem}.json", to_table(one))
    words = [str(tmp_path / "records" / "knee-base-dense-0.json"), "--run", str(run.path)]
    words += ["--records", str(tmp_path / "records"), "--out", str(tmp_path)]
    scripts("zoo_pair").main(words)
    names = ("joint-knee-base-unet", "joint-knee-base-column")
    network = reconstruction.load(tmp_path / f"{names[0]}.safetensors.xz")
    weights = read_weights(tmp_path / f"{names[1]}.safetensors.xz")
    assert weights.extra["reconstructor"] == fingerprint(network)
    policies.load(tmp_path / f"{names[1]}.safetensors.xz")
    for name in names:
        card = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert card.startswith(f"# {name}\n") and weights.extra["store"][:12] in card
        assert "this one is +0.0018 (+0.0010 to +0.0040) from a fixed order" in card
        assert "worth +0.0100 with this network" in card and "validation SSIM" not in card
        for word in ("## Data", "## Commands", "## Scores", "protocol", "MIT", "not clinical"):
            assert word in card, word
        assert all(len(line) <= 130 for line in card.splitlines() if not line.startswith("    "))


@pytest.fixture
def command(records: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what every short training is told, of a store of four test slices."""
    short = replace(records.HORIZONS["knee-8x"], n_initial=2, steps=2)
    monkeypatch.setitem(records.HORIZONS, "knee-8x", short)
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        for split, names in (("train", "a"), ("val", "b"), ("test", "cd")):
            for name in names:
                writer.append(split, name, random.random((2, 8, 12), dtype=np.float32))
        writer.finish()
    return [
        *("--data", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")),
        *("--records", str(tmp_path), "--horizon", "knee-8x", "--updates", "2"),
        *("--oracle-slices", "1", "--device", "cpu"),
        *("--set", "training.n_epochs=1", "--set", "training.batch_size=2"),
    ]


@pytest.mark.slow
def test_a_command_makes_a_record(
    scripts: Any, records: ModuleType, tmp_path: Path, command: list[str]
) -> None:
    joint = scripts("joint")
    for arm in ("fixed", "random"):
        assert joint.main(["--arm", arm, "--seed", "3", *command, *NEW]) == 0
    fixed, drawn = records.read_records(tmp_path)
    assert (fixed.arm, drawn.arm, fixed.seed, fixed.n_updates) == ("fixed", "random", 3, 2)
    assert fixed.key == drawn.key
    assert fixed.n_slices_seen == drawn.n_slices_seen == 4
    assert len(fixed.curve) == 3 and fixed.curve[-1] == fixed.ssim
    assert fixed.area == pytest.approx(np.mean(fixed.curve))
    assert {name: one.n_slices for name, one in fixed.volumes.items()} == {"c": 2, "d": 2}
    by_slice = [one.ssim for one in fixed.volumes.values()]
    assert fixed.ssim == pytest.approx(np.mean(by_slice))
    assert fixed.bounds.n_slices == 1
    # An order fitted afterwards, for the same network, on all test slices.
    run = tmp_path / "runs" / "knee-8x" / "random-2" / "seed-3"
    plan = AcquisitionPlan(2, 2, n_trajectories=1, is_argmax=True)
    setting = EvaluationSetting(plan, split="test", device="cpu")
    (after,) = evaluate(["fixed"], tmp_path / "store", run, setting).scores
    assert drawn.fitted_after == scripts("paired").volumes_of(after) != drawn.volumes
    assert (fixed.label, fixed.sampler["n_fit_slices"]) == ("2", 256)
    assert "--argmax" in fixed.commands[1] and "--trajectories 4" in drawn.commands[1]
    assert records.paired([drawn], [fixed]).seeds == (3,)


@pytest.mark.slow
def test_an_arm_that_goes_on_from_a_network_tells_which(
    scripts: Any, records: ModuleType, tmp_path: Path, command: list[str]
) -> None:
    joint = scripts("joint")
    assert joint.main(["--arm", "random", *command, *NEW]) == 0
    start = tmp_path / "runs" / "knee-8x" / "random-2" / "seed-0"
    assert joint.main(["--arm", "fixed", *command, "--start", str(start), "--label", "on"]) == 0
    found = {one.label: one for one in records.read_records(tmp_path)}["on"]
    network = fingerprint(reconstruction.load(start))
    assert (found.settings["reconstructor"], found.settings["start"]) == ({"name": "unet"}, network)


@pytest.mark.slow
def test_an_arm_is_evaluated_from_the_columns_that_its_training_started_from(
    scripts: Any, records: ModuleType, tmp_path: Path, command: list[str]
) -> None:
    joint = scripts("joint")
    start = ["--set", 'acquisition.initial="0, 7"', "--label", "own"]
    for more in ([], start):
        assert joint.main(["--arm", "fixed", *command, *NEW, *more]) == 0
    found = {one.label: one for one in records.read_records(tmp_path)}
    central, own = found["2"], found["2-own"]
    assert central.key != own.key
    assert "2 + 2 columns from 0,7, " in own.conditions
    run = tmp_path / "runs" / "knee-8x" / "fixed-2-own" / "seed-0"
    plan = AcquisitionPlan(2, 2, n_trajectories=1, is_argmax=True)
    setting = EvaluationSetting(plan, initial="0,7", device="cpu")
    (scores,) = evaluate([f"arm={run}"], tmp_path / "store", run, setting).scores
    assert own.curve == pytest.approx(scores.metric("ssim").mean(axis=0))
    few = replace(setting, limit=1)
    assert own.bounds.fixed == pytest.approx(
        evaluate(["fixed"], tmp_path / "store", run, few).scores[0].metric("ssim")[:, -1].mean()
    )
    trains, evaluates = map(shlex.split, own.commands)
    assert 'acquisition.initial="0, 7"' in trains
    assert evaluates[evaluates.index("--initial") + 1] == "0,7"
    assert "--n-initial" not in evaluates and "--n-initial 2" in central.commands[1]


def test_a_run_that_is_stopped_leaves_no_record(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint = scripts("joint")

    def stopped(*_: object) -> None:
        raise TimeoutError("8 minutes are over")

    monkeypatch.setattr(joint, "run_arm", stopped)
    assert joint.main(["--arm", "dense", "--records", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())
