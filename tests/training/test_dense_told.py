"""What benchmarks tell of records: speed, decision times, and policies that are weighed."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kscout.errors import ConfigError
from kscout.files import write_json
from nearly import nearly, plain

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_speed_of_whole_trainings_is_that_of_the_fastest_record(tmp_path: Path) -> None:
    speed = importlib.import_module("dense_speed")
    shipped = speed.RECORDS / "column-compiled-knee-knee-base-seed0.json"
    own = json.loads(shipped.read_text(encoding="utf-8"))
    for number, (arm, n, seconds) in enumerate(
        (("column", 500, 5.0), ("column", 900, 6.0), ("no-repeats", 800, 4.0), ("large", 99, 0.1))
    ):
        changed = {**own, "arm": arm, "n_reconstructions": n, "train_s": seconds, "seed": number}
        write_json(tmp_path / f"{arm}-seed{number}.json", changed)
    told = speed.whole(tmp_path)
    assert "without repeats tried 200 a second" in told and "which are the default, 150." in told


def test_records_of_another_reconstruction_stand_for_themselves(tmp_path: Path) -> None:
    records = importlib.import_module("imagine_records")
    shipped = records.HEADS / "weighed-heads-without-csi1-knee-base-seed1.json"
    own = json.loads(shipped.read_text(encoding="utf-8"))
    for label, reconstructor in (("weighed", "heads-unet"), ("own", "runs/unet-without-csi1")):
        changed = {**own, "reconstructor": reconstructor}
        write_json(tmp_path / f"{label}-heads-without-csi1-knee-base-seed1.json", changed)
    lines = [x.split(" | ")[:2] for x in records.by_head(tmp_path).splitlines() if "csi1" in x]
    assert lines == [["| csi1", "1"], ["| csi1, `weighed, own reconstruction`", "1"]]
    told = "1 of 1 (1 seeds for each head) lie above the fixed order with the whole interval"
    assert told in records._heads_words(tmp_path)


def test_a_policy_leads_by_more_where_the_reconstruction_has_not_seen_the_head_either() -> None:
    records = importlib.import_module("dense_records")
    seed = [one for one in records.read_records(records.HEADS) if one.seed == 0]
    same = [one for one in seed if (one.data, one.preset) == ("heads-without-csi1", "knee-base")]
    own, other = (
        next(one for one in same if one.name == f"weighed{words}") for words in (records.OWN, "")
    )
    assert own.marks["fixed"] < other.marks["fixed"]
    assert own.interval[0] > other.interval[1]


def test_seeds_that_trained_alike_are_told_together(tmp_path: Path) -> None:
    records = importlib.import_module("dense_records")
    shipped = records.RECORDS / "column-compiled-knee-knee-base-seed0.json"
    own = json.loads(shipped.read_text(encoding="utf-8"))
    lines = [
        *((0, 2.0, 3, "knee", 0.1), (1, 0.0, 3, "knee", 0.3), (2, 0.0, 2, "knee", 1.0)),
        *((0, 0.0, 3, "others", 1.0), (0, 2.0, 5, "knee", 1.0), (0, 0.0, 5, "knee", 1.0)),
    ]
    for number, (seed, minutes, n_epochs, test, closed) in enumerate(lines):
        asked = {"minutes": minutes, "n_epochs": n_epochs, "seed": seed, "test": test}
        write_json(tmp_path / f"{number}-seed{seed}.json", {**own, **asked, "gap_closed": closed})
    told = records.over_lines(records.read_records(tmp_path))
    assert told.startswith(
        "`column` `training.compile=true` on knee, knee-base, 3 epochs, over all 2 seeds: "
        "20 % (10 to 30)"
    )
    # Other test slices, other epochs and the same seed twice are not counted in.
    assert told.count("over all") == 1


ROWS = {
    **{"dense": "column-compiled-knee", "dense-4x": "column-compiled-knee-4x"},
    **{f"dense-{arm}": f"{arm}-2-epochs-knee" for arm in ("conv", "unmirrored", "no-prior")},
    **{f"dense-{arm}-labels": f"{arm}-labels-2-epochs-knee" for arm in ("random", "best", "half")},
    **{"dense-2-epochs": "column-2-epochs-knee", "dense-no-repeats": "no-repeats-knee"},
    "dense-slopes": "slopes-compiled-knee",
}


def test_rows_of_dense_gains_on_the_leaderboard_are_what_records_say() -> None:
    records = importlib.import_module("dense_records")
    leaderboard = importlib.import_module("leaderboard")
    found = {row.method: row for row in leaderboard.frozen_rows() if row.horizon == "knee-base"}
    for method, stem in ROWS.items():
        files = sorted(records.RECORDS.glob(f"{stem}-knee-base-seed*.json"))
        seeds = [records.read(records.DenseRecord, records.content(file)) for file in files]
        sources = [x.partition("=")[2] for x in found[method].command.split() if "=runs/" in x]
        row = records.leaderboard_row(seeds, method, sources)
        assert plain([found[method]]) == nearly([row])
    assert found["dense"].n_seeds == 3


def test_records_that_are_no_seeds_of_one_method_are_no_row() -> None:
    records = importlib.import_module("dense_records")
    files = sorted(records.RECORDS.glob("column-compiled-knee-knee-base-seed*.json"))
    seeds = [records.read(records.DenseRecord, records.content(file)) for file in files]
    other = replace(seeds[1], marks={**seeds[1].marks, "fixed": 0.5})
    for given, sources in (
        ([seeds[0], seeds[0]], ["a", "b"]),
        ([seeds[0], other], ["a", "b"]),
        (seeds[:2], ["a"]),
    ):
        with pytest.raises(ConfigError, match="not one method on one test set; give a record"):
            records.leaderboard_row(given, "dense", sources)


def test_what_is_told_of_weighed_policies_is_filled_in() -> None:
    records = importlib.import_module("imagine_records")
    for text in (records.lead(), records.lead_in_docs(), records.people(), records.reached()):
        assert text.endswith("\n") and not set("{}") & set(text)
    (best,) = (
        one
        for one in records.read_records(records.RECORDS)
        if (one.name, one.preset, one.n_slices) == (records.TWO, "knee-base", 1715)
    )
    assert f"closes {100 * best.gap_closed:.0f} % of the gap" in records.lead()


def test_decision_times_are_kept_by_network_and_device(tmp_path: Path) -> None:
    latency = importlib.import_module("decision_latency")
    words = ["--sizes", "16", "--times", "2", "--record", str(tmp_path / "record.json")]
    latency.main([*words, "--batch", "3"])
    for _ in range(2):
        latency.main(words)
    found = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    known = [(one["network"], one["batch"]) for one in found]
    assert known == [(name, batch) for batch in (3, 1) for name in latency.NETWORKS]
    assert all(0 < one["shortest_ms"] <= one["median_ms"] for one in found)
    text = latency.table(tmp_path / "record.json")
    assert text.count("| `large` | 3,890,049 | 2 threads of a CPU") == 2
