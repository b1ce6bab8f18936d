"""`benchmarks/alphazero.py`: an arm stops when its time is over, goes on, and is compared."""

import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_stores import blob_store

from kscout.config import PolicyConfig
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.training.estimators.alphazero import Sizes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "alphazero": ("policy.n_channels=2", "policy.n_hidden=8", "training.n_episodes=2"),
    "greedy": ("policy.n_blocks=1",),
}
ACQUISITION = ("acquisition.n_initial=2", "acquisition.horizon=2", "acquisition.size=16")


def test_every_arm_is_a_training_of_its_own(scripts: Any) -> None:
    script = scripts("alphazero")
    found = {arm: script.config_of(arm, "knee-base", 5) for arm in script.ARMS}
    assert len({repr(one) for one in found.values()}) == len(found)
    assert all(isinstance(one, PolicyConfig) for one in found.values())
    assert {one.training.seed for one in found.values()} == {5}
    assert {arm for arm, one in found.items() if one.training.method == "greedy"} == {"greedy"}
    page = (BENCHMARKS.parent / "docs" / "alphazero.md").read_text(encoding="utf-8")
    assert all(f"`{arm}`" in page or f" {arm} " in page for arm in found)


def test_no_record_tells_of_less_time_than_it_took(scripts: Any, tmp_path: Path) -> None:
    script = scripts("alphazero")
    lines = [f'{{"epoch": {n}, "time_s": 40.0}}\n' for n in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    wanted = script.parsed(["--minutes", "1"])
    with pytest.raises(ConfigError, match=r"has taken 2\.0 minutes; ask for more"):
        script.trained(script.config_of("alphazero", "knee-base", 0), wanted, tmp_path)


@pytest.fixture(scope="module")
def records(scripts: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a record of AlphaZero, which was paused, and one of greedy."""
    folder = tmp_path_factory.mktemp("alphazero")
    made = blob_store(folder / "made", n_rows=16, n_cols=16).split("train")
    with StoreWriter(folder / "blobs", {"made by": "tests"}) as writer:
        for split in ("train", "val", "test"):
            for volume in dict.fromkeys(made.volumes):
                images = made.of_volumes(volume).magnitudes().numpy()
                writer.append(split, f"{split}-{volume}", images)
        writer.finish()
    common = [
        *("--data", str(folder / "blobs"), "--reconstructor", "zero-filled", "--device", "cpu"),
        *("--no-zoo", "--runs", str(folder / "runs"), "--out", str(folder / "records")),
    ]

    def run(arm: str, *words: str) -> int:
        changes = [word for one in (*TINY[arm], *ACQUISITION) for word in ("--set", one)]
        return scripts("alphazero").main([*common, "--arm", arm, *changes, *words])

    paused = ["--minutes", "0.0001", "--pause", "1e-9"]
    assert run("alphazero", *paused) == 1
    assert not list((folder / "records").iterdir())
    assert run("alphazero", "--minutes", "0.0001", "--beside", "1") == 0
    assert run("greedy", "--minutes", "0.0001") == 0
    # What has a record is not made again: this could not be.
    assert run("greedy", "--minutes", "0.0001", "--device", "nowhere") == 0
    return folder / "records"


def test_a_record_tells_what_was_reached_after_how_much(scripts: Any, records: Path) -> None:
    found = scripts("alphazero_records").read_records(records)
    assert [(one.arm, one.n_rounds, one.best_round) for one in found] == [
        ("alphazero", 1, 1),
        ("greedy", 1, 1),
    ]
    own, greedy = found
    assert own.train_s > 0 and own.n_reconstructions > 0
    assert own.n_decisions == 2 * 2 and own.n_beside == 1 and greedy.n_beside is None
    assert 0 <= own.label_entropy[0] and len(own.loss) == 1
    # Two columns of those left after a start of two.
    assert 0 < own.conditional_entropy <= math.log(14) and own.mutual_information >= -1e-6
    assert len(own.val_ssim) == len(own.search_ssim) == len(own.tree_ssim) == 1
    assert own.search_ssim[0] <= own.tree_ssim[0] and greedy.search_ssim == ()
    assert own.volumes.keys() == greedy.argmax_volumes.keys() == {"test-a", "test-b"}
    assert "--method alphazero" in own.command and "--epochs 1 --seed 0" in own.command
    assert "--set policy.n_hidden=8" in own.command


def test_arms_stand_beside_marks_and_greedy_of_equal_time(scripts: Any, records: Path) -> None:
    script, paired = scripts("alphazero_records"), scripts("paired")
    own, greedy = script.read_records(records)
    (marks,) = script.read_marks(records).values()
    text = script.paired_table(records)
    line = next(line for line in text.splitlines() if "| `alphazero` " in line)
    for volumes in (marks.volumes["random"], marks.volumes["fixed"], greedy.volumes):
        minus = paired.mean_ssim(own.volumes) - paired.mean_ssim(volumes)
        assert f"{minus:+.4f}".replace("0.", ".", 1) in line
    last = next(line for line in text.splitlines() if "| `greedy` " in line)
    minus = paired.mean_ssim(greedy.volumes) - paired.mean_ssim(marks.volumes["fixed"])
    assert last.endswith("| - |") and f"{minus:+.4f}".replace("0.", ".", 1) in last
    assert "Not run: knee-base `alphazero` (1, 2), knee-base `greedy` (1, 2)" in script.table(
        records
    )


def fabricated(scripts: Any, folder: Path, **changes: object) -> None:
    """Write a record whose volumes all lie at one SSIM, give or take."""
    script, files = scripts("alphazero_records"), scripts("kscout.files")
    given = {"arm": "alphazero", "seed": 0, "ssim": 0.8, "argmax": 0.8, "minutes": 6.0, **changes}
    drawn, argmax = (
        {
            f"v{n}": scripts("paired").Volume(2, given[key] + 1e-4 * n, 30.0)  # type: ignore[operator]
            for n in range(6)
        }
        for key in ("ssim", "argmax")
    )
    del given["ssim"], given["argmax"]
    filled = {
        **{"data": "knee", "preset": "knee-base", "reconstructor": "knee-unet", "changes": ()},
        **{"n_rounds": 4, "best_round": 4, "train_s": 360.0, "n_reconstructions": 4_000_000},
        **{"n_parameters": 1, "val_ssim": (0.7, 0.75, 0.74, 0.8), "search_ssim": (0.9,) * 4},
        **{"tree_ssim": (0.91,) * 4, "command": "", "evaluates": "", "device": "", **given},
    }
    record = script.ArmRecord(volumes=drawn, argmax_volumes=argmax, **filled)
    name = f"{record.arm}-{record.minutes:g}-{record.seed}.json"
    files.write_json(folder / name, scripts("kscout.config").to_table(record))


def mark(scripts: Any, folder: Path, **ssim: float) -> None:
    """Write marks whose volumes all lie at one SSIM."""
    script, volume = scripts("alphazero_records"), scripts("paired").Volume
    volumes = {
        name: {f"v{n}": volume(2, value, 30.0) for n in range(6)} for name, value in ssim.items()
    }
    found = script.Marks("knee", "knee-base", volumes, ssim)
    table = scripts("kscout.config").to_table(found)
    scripts("kscout.files").write_json(folder / "marks-knee-knee-base.json", table)


def test_where_it_stands_follows_from_intervals(scripts: Any, tmp_path: Path) -> None:
    script = scripts("alphazero_findings")
    mark(scripts, tmp_path, **{"random": 0.7, "fixed": 0.85, "knee-base-greedy": 0.83})
    told = {"n_decisions": 20_000, "n_beside": 5, "loss": (4.0, 3.0), "label_entropy": (2.5, 2.0)}
    told |= {"conditional_entropy": 1.5, "mutual_information": 0.25}
    long = {"n_rounds": 8, "best_round": 8, "val_ssim": (*[0.7] * 4, 0.75, 0.77, 0.77, 0.8)}
    for seed in (0, 1):
        fabricated(scripts, tmp_path, seed=seed, argmax=0.82, **long, **told)
        told |= {"n_beside": 6}
        fabricated(scripts, tmp_path, arm="greedy", seed=seed, ssim=0.8001, **told)
    text = script.findings(tmp_path).replace("\n", " ")
    for words in (
        "**knee-base, 6 minutes beside 5 or 6 other trainings on the GPU, 2 seeds.**",
        "AlphaZero ends above `random` by +.1003 (",
        "; below `fixed` by -.0497 (",
        ", the greedy arm of equal time by -.0001 (",
        "from .7000 after the first round to .8000 at the best (round 8 of 8, 8 of 8); the ",
        "rounds differs from the one before by +.0250. At this pace the paper's 540 rounds take 6",
        "it learned from 20,000 decisions at 200 reconstructions each, 11,111 reconstructions a",
        "; greedy learned from 20,000 decisions",
        "It earns no place in the zoo: it ends below `knee-base-greedy`",
        "end at .9000 on training slices, and the best masks that they met at .9100; on held-out",
        "slices the network alone ends at .8000, greedy at .8000.",
        "entropy of 2.50 nats in the first round and 2.00 in the last, as of 7 columns",
        "Its distribution has 1.50 nats of entropy given the slice, as of 4 equal columns, and",
        "; greedy's distribution has 1.50 nats",
        "changes by +.0200, greedy by -.0001; it then ends above greedy by +.0200",
    ):
        assert words in text, words
    assert script.findings(tmp_path / "nowhere") == "AlphaZero has not been run yet.\n"


def test_whether_it_is_below_greedy_is_told_with_what_it_comes_from(
    scripts: Any, tmp_path: Path
) -> None:
    script = scripts("alphazero_findings")
    assert script.answer(tmp_path).startswith("No greedy arm")
    fabricated(scripts, tmp_path, n_decisions=1000, n_reconstructions=2_000_000)
    counts = {"n_reconstructions": 1_500_000, "n_uncounted": 500_000}
    fabricated(scripts, tmp_path, seed=1, n_decisions=1000, **counts)
    fabricated(scripts, tmp_path, arm="greedy", ssim=0.81, n_decisions=40_000)
    text = script.answer(tmp_path)
    assert "AlphaZero ends below greedy of equal time, by -.0100 (-.0100 to -.0100), seed 0" in text
    assert "; the paper's by -.0027.** In validation SSIM that is +.0000, and +.0500 from" in text
    assert "2 times as many reconstructions a second, and takes 100 for a decision instead" in text
    assert "of 2000: it learned from 40 times as many decisions." in text


def test_records_of_before_and_without_marks_are_told_of_as_far_as_they_go(
    scripts: Any, tmp_path: Path
) -> None:
    fabricated(scripts, tmp_path, best_round=2)
    fabricated(scripts, tmp_path, arm="mean", val_ssim=(0.6,))
    text = scripts("alphazero_findings").findings(tmp_path)
    assert "AlphaZero ends beside nothing that was run.\n" in text
    assert "greedy" not in text and "zoo" not in text
    fabricated(scripts, tmp_path, arm="greedy")
    text = scripts("alphazero_findings").findings(tmp_path)
    assert "quarter" not in text
    assert "decisions" not in text and "beside 5" not in text and "nats" not in text
    assert "| `greedy` | 6 | - |" in scripts("alphazero_records").paired_table(tmp_path)


def test_constants_are_compared_at_equal_time_and_at_equal_cost(
    scripts: Any, tmp_path: Path
) -> None:
    script = scripts("alphazero_findings")
    assert script.study(tmp_path) == "No other constant has been tried yet.\n"
    fabricated(scripts, tmp_path)
    fabricated(scripts, tmp_path, arm="searches-32")
    fabricated(scripts, tmp_path, arm="searches-32", minutes=3.0)
    fabricated(scripts, tmp_path, arm="searches-8", ssim=0.81, n_reconstructions=3_100_000)
    fabricated(scripts, tmp_path, arm="searches-128", ssim=0.79, n_reconstructions=900_000)
    less, more = script.study(tmp_path).splitlines()
    assert "`searches-8` (knee-base, 6 minutes) ends above `searches-32` of equal time by +" in less
    assert "After 3.1 million" in less and less.endswith("where `searches-32` had .7500.")
    assert "ends below" in more and more.endswith("its validation SSIM is .8000.")


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page, whose tables other tests hold to the records."""
    return (BENCHMARKS.parent / "docs" / "alphazero.md").read_text(encoding="utf-8")


def test_the_defaults_are_what_the_study_found(scripts: Any, page: str) -> None:
    ends = re.findall(r"^- `(\S+)` .* ends (\w+) `searches-32` of equal time", page, re.MULTILINE)
    assert {name for name, word in ends if word == "above"} == {"searches-8", "exploration-0.25"}
    assert {name for name, word in ends if word == "below"} == {"searches-128", "exploration-4"}
    arms, default = scripts("alphazero_records").ARMS, PolicyConfig.of("alphazero")
    n_searches = Sizes.of(default, 6959, 128).n_searches
    assert f"training.n_searches={n_searches}" in arms["searches-8"]
    exploration = default.training.exploration
    assert f"training.exploration={exploration}" in arms["exploration-0.25"]


def test_what_is_said_of_all_trainings_holds(scripts: Any, page: str) -> None:
    heads = [line for line in page.splitlines() if line.startswith("- **knee-")]
    assert len(heads) == 3
    for line in heads:
        above, below = line.split("; below ")
        assert all(f"`{name}` by +" in above for name in ("random", "equispaced-one"))
        assert "`equispaced-two` by +" in above and below.startswith("`fixed` by -")
    assert "it then ends below greedy by" in page
    by_arm = {(x.arm, x.minutes, x.seed): x for x in scripts("alphazero_records").read_records()}
    greedy, own = by_arm["greedy", 6, 0], by_arm["alphazero", 6, 0]
    assert own.conditional_entropy > greedy.conditional_entropy
    # As if each of 32 searches passed a column of its own.
    assert by_arm["exploration-4", 4, 0].label_entropy[-1] > math.log(31)
    # The longest training is three minutes more of that seed, and greedy left a plateau at last.
    longest = by_arm["alphazero", 9, 0]
    assert longest.val_ssim[: own.n_rounds] == own.val_ssim
    *plateau, last = greedy.val_ssim
    assert max(plateau) - min(plateau) < 5e-4 < last - max(plateau)
    assert abs(max(longest.val_ssim) - max(plateau)) < 5e-4


def test_marks_are_evaluated_once_by_arms_that_end_together(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, files, made = scripts("alphazero"), scripts("kscout.files"), []
    wanted = script.parsed(["--out", str(tmp_path), "--data", "knee"])
    config = script.config_of("greedy", "knee-base", 0)

    def evaluated(config: Any, wanted: Any, key: str) -> Any:
        made.append(key)
        script.write_marks(config, wanted)
        return script.Marks("knee", "knee-base", {}, {}, key)

    monkeypatch.setattr(script, "_marks", evaluated)
    monkeypatch.setattr(script, "marks_key", lambda *_: "abc")
    held = files.take_lock(tmp_path, name=".marks-knee-knee-base-abc.lock")
    script.write_marks(config, wanted)
    assert not made
    os.close(held)
    script.write_marks(config, wanted)
    script.write_marks(config, wanted)
    assert made == ["abc"]
    assert [one.name for one in tmp_path.iterdir()] == ["marks-knee-knee-base-abc.json"]
    assert [*script.read_marks(tmp_path)] == [("knee", "knee-base", "abc")]


@pytest.mark.parametrize(
    "change",
    [
        ["--set", "acquisition.initial=1,9"],
        ["--set", "acquisition.horizon=3"],
        ["--set", "training.protocol=blind"],
        ["--limit", "2"],
        ["--reconstructor", "total-variation"],
    ],
)
def test_arms_that_ask_otherwise_have_marks_of_their_own(
    scripts: Any, records: Path, change: list[str]
) -> None:
    script = scripts("alphazero")
    words = ["--data", str(records.parent / "blobs"), "--reconstructor", "zero-filled", "--no-zoo"]
    words += ["--out", str(records), "--arm", "greedy", "--minutes", "0.0001"]
    words += [word for one in (*TINY["greedy"], *ACQUISITION) for word in ("--set", one)]
    keys = []
    for own in (words, [*words, "--device", "cpu", "--batch-size", "3"], [*words, *change]):
        wanted = script.parsed(own)
        config = script.config_of("greedy", wanted.preset, wanted.seed, wanted.set)
        keys.append(script.marks_key(config, wanted))
    ((*_, known),) = script.read_marks(records)
    assert keys[0] == keys[1] == known != keys[2]
    with pytest.raises(ConfigError, match="was made with other slices, columns or another network"):
        script.main([*words, *change])


def test_an_arm_and_its_marks_start_from_the_columns_of_its_training(
    scripts: Any, records: Path, tmp_path: Path
) -> None:
    script, store = scripts("alphazero"), records.parent / "blobs"
    words = ["--data", str(store), "--reconstructor", "zero-filled", "--device", "cpu", "--no-zoo"]
    words += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path), "--minutes", "0.0001"]
    start = ("acquisition.initial=1,9", *TINY["greedy"], *ACQUISITION)
    words += [word for one in start for word in ("--set", one)]
    assert script.main([*words, "--arm", "greedy"]) == 0
    (marks,) = script.read_marks(tmp_path).values()
    (record,) = script.read_records(tmp_path)
    assert record.place == marks.place and "--initial 1,9 --steps 2" in record.evaluates
    plan = AcquisitionPlan(n_initial=2, horizon=2, n_trajectories=8)
    setting = EvaluationSetting(plan, initial="1,9", device="cpu", n_examples=0)
    best = next((tmp_path / "runs").rglob("best.safetensors"))
    found = evaluate([f"greedy={best}", "fixed"], store, "zero-filled", setting).found
    expected = {one.policy: one.ssim for one in found.policies}
    mean = scripts("paired").mean_ssim(record.volumes)
    assert {"greedy": mean, "fixed": marks.ssim["fixed"]} == pytest.approx(expected)
    central = next(iter(script.read_marks(records).values()))
    assert central.ssim["fixed"] != marks.ssim["fixed"]


def test_seeds_are_one_row_of_the_leaderboard(scripts: Any, records: Path) -> None:
    script = scripts("alphazero_records")
    own, greedy = script.read_records(records)
    (marks,) = script.read_marks(records).values()
    other = replace(
        own, seed=1, evaluates=own.evaluates.replace("seed-0", "seed-1"), volumes=greedy.volumes
    )
    longer = replace(own, minutes=9.0)
    row = script.leaderboard_row([longer, own, other, greedy], marks, store="knee-paper-size")
    assert (row.method, row.n_seeds, row.horizon) == ("alphazero", 2, "knee-base")
    assert row.difference_to_fixed == pytest.approx(row.ssim_mean - marks.ssim["fixed"], abs=1e-12)
    assert row.command.count("--policy alphazero=") == 2 and "seed-1/best" in row.command
    assert row.command.count("--policy fixed") == 1
