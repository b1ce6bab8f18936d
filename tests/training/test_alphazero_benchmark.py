"""`benchmarks/alphazero.py`: an arm stops when its time is over, goes on, and is compared."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_stores import blob_store

from kscout.config import PolicyConfig
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "alphazero": ("policy.n_channels=2", "policy.n_hidden=8", "training.n_episodes=2"),
    "greedy": ("policy.n_blocks=1",),
}
ACQUISITION = ("acquisition.n_initial=2", "acquisition.horizon=2", "acquisition.size=16")


@pytest.fixture(scope="module")
def scripts() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


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
    assert run("alphazero", "--minutes", "0.0001") == run("greedy", "--minutes", "0.0001") == 0
    # What has a record is not made again: this could not be.
    assert run("greedy", "--minutes", "0.0001", "--reconstructor", "nowhere") == 0
    return folder / "records"


def test_a_record_tells_what_was_reached_after_how_much(scripts: Any, records: Path) -> None:
    found = scripts("alphazero_records").read_records(records)
    assert [(one.arm, one.n_rounds, one.best_round) for one in found] == [
        ("alphazero", 1, 1),
        ("greedy", 1, 1),
    ]
    own, greedy = found
    assert own.train_s > 0 and own.n_reconstructions > 0
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
    assert last.endswith("| - |")
    assert "Not run: knee-base `alphazero` (1, 2), knee-base `greedy` (1, 2)" in script.table(
        records
    )


def test_where_it_stands_follows_from_intervals(scripts: Any, records: Path) -> None:
    script, paired = scripts("alphazero_records"), scripts("paired")
    for interval, words in (
        ((0.1, 0.2), "above"),
        ((-0.2, -0.1), "below"),
        ((-1, 1), "not clearly"),
    ):
        assert script._standing(paired.Paired((0,), 0.0, interval)).startswith(words)
    text = script.findings(records)
    assert text.startswith("- **knee-base, 0.0001 minutes, 1 seed.** AlphaZero ends ")
    assert all(f"`{mark}`" in text for mark in script.MARKS) and "the greedy arm" in text
    assert script.findings(records / "nowhere") == "AlphaZero has not been run yet.\n"


def test_seeds_are_one_row_of_the_leaderboard(scripts: Any, records: Path) -> None:
    script = scripts("alphazero_records")
    own, greedy = script.read_records(records)
    (marks,) = script.read_marks(records).values()
    other = replace(
        own, seed=1, evaluates=own.evaluates.replace("seed-0", "seed-1"), volumes=greedy.volumes
    )
    row = script.leaderboard_row([own, other, greedy], marks, store="knee-paper-size")
    assert (row.method, row.n_seeds, row.horizon) == ("alphazero", 2, "knee-base")
    assert row.difference_to_fixed == pytest.approx(row.ssim_mean - marks.ssim["fixed"], abs=1e-12)
    assert row.command.count("--policy alphazero=") == 2 and "seed-1/best" in row.command
    assert row.command.count("--policy fixed") == 1
