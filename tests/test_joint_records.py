"""Records of joint trainings are made by one command each, and paired by seed and volume."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kscout import policies, reconstruction
from kscout.config import JointConfig, to_table
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.evaluation.statistics import bootstrap_interval
from kscout.files import write_json
from kscout.training.joint.train import train_joint
from kscout.weights import fingerprint, read_weights
from training.joint_runs import joint_config
from training.training_stores import blob_store

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def records(scripts: Any) -> ModuleType:
    return scripts("joint_records")


def record(records: ModuleType, arm: str, seed: int, ssim: list[float], **changes: Any) -> Any:
    """Return a record with these scores of three volumes of one, two and three slices."""
    volumes = {
        name: records.Volume(n, value, 30.0)
        for name, n, value in zip("abc", (1, 2, 3), ssim, strict=True)
    }
    mean, bounds = (
        float(np.average(ssim, weights=[1, 2, 3])),
        records.Bounds(2, 0.8, 0.79, 0.7, 0.9),
    )
    own: dict[str, Any] = {
        **{"arm": arm, "seed": seed, "horizon": "knee-base", "n_updates": 6000},
        **{"n_sampler_updates": 3, "n_slices_seen": 5, "n_parameters": 837635},
        **{"sampler_share": 0.25, "train_s": 90.0, "ssim": mean, "psnr": 30.0},
        **{"curve": (0.5, mean), "psnr_curve": (20.0, 30.0), "area": (0.5 + mean) / 2},
        **{"volumes": volumes, "commands": ("train", "evaluate"), "settings": {"a": 1}},
        **{"device": "cpu", "bounds": bounds},
        **{"sampler": {"n_repeats": 8} if arm == "dense" else {}},
    }
    return records.JointRecord(**{**own, **changes})


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


def test_rows_of_the_leaderboard_are_of_the_seeds_that_both_have(records: ModuleType) -> None:
    fixed = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    dense = [record(records, "dense", seed, [0.72, 0.8, 0.6]) for seed in (1, 2)]
    apart = record(records, "dense", 0, [0.9, 0.9, 0.9], settings={"a": 2})
    rows = records.leaderboard_rows([*fixed, *dense, apart])
    assert [(row.method, row.n_seeds, row.reconstruction) for row in rows] == [
        ("dense", 1, "joint"),
        ("fixed", 2, "joint"),
    ]
    assert rows[0].difference_to_fixed == pytest.approx(rows[0].ssim_mean - rows[1].ssim_mean)
    assert rows[0].gap_closed == pytest.approx((0.8 - 0.7) / (0.9 - 0.7))
    assert (rows[1].difference_to_fixed, rows[1].interval) == (0.0, None)
    assert records.leaderboard_rows(fixed) == []


def test_the_leaderboard_has_the_rows_of_the_records(scripts: Any, records: ModuleType) -> None:
    script = scripts("leaderboard")
    entered = [row for row in script.read_leaderboard() if row.reconstruction == "joint"]
    expected = script.entered([], records.leaderboard_rows(records.read_records()))
    assert entered == expected, "run benchmarks/joint.py --enter"


def test_the_table_lists_what_was_not_run(records: ModuleType) -> None:
    fixed = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    dense = record(records, "dense", 0, [0.71, 0.82, 0.63])
    text = records.table([fixed, dense])
    assert "| `fixed` | 0 | .6833 | reference | .5917 |" in text
    assert "| `dense` | 0 | .7067 | +.0233 (.0100 to .0300) | .6033 | 30.00 | .9000 |" in text
    missing = text.partition("Not run: ")[2]
    assert text.startswith("knee-base, 16 + 16 columns, 0.8 million parameters, 6,959 slices, ")
    assert missing.startswith("knee-base `fixed` (1, 2), knee-base `dense` (1, 2), knee-8x `fixed`")


@pytest.mark.parametrize(
    ("by_seed", "interval", "words"),
    [
        ([0.003, 0.0032], (0.001, 0.005), "adapting pays"),
        ([0.001, 0.0012], (0.001, 0.002), "adapting pays, by less than 0.002"),
        ([0.003, 0.0032], (-0.001, 0.005), "no difference is shown"),
        ([-0.003, -0.0032], (-0.005, -0.001), "adapting costs"),
        ([0.007, -0.001], (0.001, 0.005), "seeds disagree, so that nothing is decided"),
        ([-0.007, 0.001], (-0.005, -0.001), "seeds disagree, so that nothing is decided"),
        ([0.003, 0.0032], None, "one volume decides nothing"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_seeds(
    scripts: Any, by_seed: list[float], interval: tuple[float, float] | None, words: str
) -> None:
    found = scripts("paired").Paired((0, 1), sum(by_seed) / 2, interval)
    assert scripts("joint_findings").verdict(found, by_seed) == words


def test_the_strongest_fixed_arm_is_the_reference_and_the_others_are_told_beside(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    fresh = {"sampler": {"fresh_pool": True}, "label": "fresh"}
    stale = [record(records, "fixed", seed, [0.7, 0.8, 0.6]) for seed in (0, 1)]
    strong = [record(records, "fixed", seed, [0.702, 0.802, 0.602], **fresh) for seed in (0, 1)]
    dense = [record(records, "dense", seed, [0.703, 0.803, 0.603]) for seed in (0, 1)]
    text, name = (
        _findings(scripts, tmp_path, [*stale, *strong, *dense]),
        "`fixed` (fresh_pool=true)",
    )
    assert f"`dense` minus {name} +.0010 (.0010 to .0010) over 2 seeds" in text
    assert "Over the weaker `fixed` it is +.0030 (.0030 to .0030), 2 seeds: " in text
    lead = f"{name} minus `fixed` is +.0020 (.0020 to .0020), by seed +.0020, +.0020; standard"
    assert lead in text and "below its best epoch" not in text
    fallen = [replace(one, validation=(0.7, 0.73, 0.72)) for one in strong]
    words = f"On validation slices {name} ends .0100, .0100 below its best epoch."
    assert words in _findings(scripts, tmp_path, [*stale, *fallen, *dense])
    told = records.table([*stale, *strong, *dense])
    assert f"| {name} | 0, 1 | .6853 ± .0000 | reference |" in told
    assert "| `fixed` | 0, 1 | .6833 ± .0000 | -.0020 (-.0020 to -.0020) |" in told
    # One of fewer seeds does not stand for all, and what it would change is said.
    text = _findings(scripts, tmp_path, [*stale, strong[0], *dense])
    assert "`dense` minus `fixed` +.0030" in text
    assert f"Over the stronger {name} it is +.0010 (.0010 to .0010), 1 seed: " in text


def _findings(scripts: Any, folder: Path, found: list[Any]) -> str:
    for file in folder.glob("*.json"):
        file.unlink()
    for one in found:
        write_json(folder / f"{one.stem}.json", to_table(one))
    text = scripts("joint_findings").findings(folder)
    assert isinstance(text, str)
    return text


def test_a_difference_is_parted_over_the_seeds_that_both_have(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    bounds = [records.Bounds(2, arm, arm - 0.01, 0.7, 0.9) for arm in (0.8, 0.85)]
    fixed = record(records, "fixed", 1, [0.7, 0.8, 0.6], bounds=bounds[0])
    dense = [
        record(records, "dense", seed, [0.702, 0.802, 0.602], bounds=bounds[seed])
        for seed in (0, 1)
    ]
    text = _findings(scripts, tmp_path, [fixed, *dense])
    assert "Of +.0500 on 2 slices, +.0100 (+.0100) is what choosing anew" in text
    assert "fitted for that network, and +.0400 (+.0400) is what that network leads by" in text
    close = replace(dense[1], bounds=records.Bounds(2, 0.85, 0.849, 0.7, 0.9))
    text = _findings(scripts, tmp_path, [fixed, close])
    assert "+.0010 (+.0010; less than 0.002) is what choosing anew is worth" in text


def test_findings_and_headroom_are_those_of_the_records(
    scripts: Any, records: ModuleType, tmp_path: Path
) -> None:
    findings = scripts("joint_findings")
    settings = {"start": "b211ad", "reconstructor": {"name": "unet", "n_channels": 16}}
    assert "has been run yet" in findings.findings(tmp_path)
    for arm, ssim in (("fixed", [0.88, 0.89, 0.87]), ("dense", [0.881, 0.891, 0.871])):
        for seed in (0, 1):
            command = f"kscout train joint --method {arm} --out runs/{arm} --seed {seed} --steps 16"
            changed = {"settings": settings, "commands": (f"{command} --set a.b=true", "")}
            one = record(records, arm, seed, ssim, **changed)
            write_json(tmp_path / f"{arm}-{seed}.json", to_table(one))
    text = findings.findings(tmp_path)
    words = "`dense` minus `fixed` +.0010 (.0010 to .0010) over 2 seeds (+.0010, +.0010; "
    words += "standard error .0000): "
    words += "adapting pays, by less"
    assert text.count("\n- ") == 0 and words in text
    assert "reaches .8783, above the frozen network's oracle, which sees the truth (.8696;" in text
    row = {"policy": "posterior", "step": 1, "ssim": 0.8, "gap_closed": 0.31, "difference": 0.1}
    other = {**row, "policy": "look-ahead dense", "gap_closed": 0.25}
    (tmp_path / "ceiling" / "knee-base-dense-0").mkdir(parents=True)
    rows = [{**one, "low": None, "high": None} for one in (row, other)]
    write_json(tmp_path / "ceiling" / "knee-base-dense-0" / "ceiling.json", rows)
    told = findings.headroom(tmp_path)
    measured = "| .8000 | .7900 | .7000 | .9000 | 50 % |"
    assert (
        f"| `dense` | 0, 1 {measured} 31 % |" in told and f"| `fixed` | 0, 1 {measured} - |" in told
    )
    sentence = findings.best(tmp_path)
    command = "kscout train joint --method dense --out runs/joint --set a.b=true"
    assert f"```bash\n{command}\n```" in sentence
    assert "the 6,959 slices of `kscout data make knee --paper` it reaches SSIM .8793" in sentence
    parted = (
        "Of +.0000 on 2 slices, +.0100 (+.0100, +.0100) is what choosing anew is worth on the "
        "network of `dense`"
    )
    assert parted in text and "and -.0100 (-.0100, -.0100) is what that network leads by" in text
    assert "adapting pays, by less than 0.002. In area +.0005, in PSNR +0.00 dB." in text


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


def test_a_command_trains_what_was_recorded_whatever_became_the_default(
    records: ModuleType,
) -> None:
    command = "kscout train joint --method dense --set training.sampler_every=5"
    own = {"sampler": {"sampler_every": 5, "n_best": 8}, "commands": (command, "")}
    old = record(records, "dense", 0, [0.7, 0.8, 0.6], **own)
    assert old.command == f"{command} --set training.n_repeats=0"
    plain = record(records, "fixed", 0, [0.7, 0.8, 0.6])
    assert plain.command == plain.commands[0]


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
    alike = replace(fixed, settings={**fixed.settings, "n_train": 6959, "training": {}})
    assert alike.key == fixed.key
    for settings in ({"a": 1, "n_train": 5}, {"a": 1, "training": {"flips": True}}):
        assert replace(fixed, settings=settings).key != fixed.key
    # The leaderboard has the comparison whose fixed order is the hardest to beat.
    dense = record(records, "dense", 0, [0.7, 0.8, 0.6])
    few = [replace(x, ssim=0.9, settings={"a": 1, "n_train": 5}) for x in (fixed, dense)]
    rows = records.leaderboard_rows([fixed, dense, *few])
    assert [row.ssim_mean for row in rows] == [0.9, 0.9]


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
        assert "seed(s) is 0.8802, +0.0018 (+0.0010 to +0.0040) from a fixed order" in card
        assert "worth +0.0100 with this network" in card and "validation SSIM" not in card
        for word in ("## Data", "## Commands", "## Scores", "protocol", "MIT", "not clinical"):
            assert word in card, word
        assert all(len(line) <= 130 for line in card.splitlines() if not line.startswith("    "))


@pytest.mark.slow
def test_a_command_makes_a_record(
    scripts: Any, records: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(records.HORIZONS["knee-8x"], n_initial=2, steps=2)
    monkeypatch.setitem(records.HORIZONS, "knee-8x", short)
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        for split, names in (("train", "a"), ("val", "b"), ("test", "cd")):
            for name in names:
                writer.append(split, name, random.random((2, 8, 12), dtype=np.float32))
        writer.finish()
    common = [
        *("--data", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")),
        *("--records", str(tmp_path), "--horizon", "knee-8x", "--start", "nothing"),
        *("--channels", "2", "--updates", "2", "--oracle-slices", "1", "--device", "cpu"),
        *("--set", "reconstructor.n_pools=2", "--set", "training.n_epochs=1"),
        *("--set", "training.batch_size=2"),
    ]
    joint = scripts("joint")
    for arm in ("fixed", "random"):
        assert joint.main(["--arm", arm, "--seed", "3", *common]) == 0
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
    assert (fixed.label, fixed.sampler["n_fit_slices"]) == ("2", 256)
    assert "--argmax" in fixed.commands[1] and "--trajectories 4" in drawn.commands[1]
    assert records.paired([drawn], [fixed]).seeds == (3,)


def test_a_run_that_is_stopped_leaves_no_record(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint = scripts("joint")

    def stopped(*_: object) -> None:
        raise TimeoutError("8 minutes are over")

    monkeypatch.setattr(joint, "run_arm", stopped)
    assert joint.main(["--arm", "dense", "--records", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())
