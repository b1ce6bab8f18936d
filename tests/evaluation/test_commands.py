"""`kscout evaluate` and `kscout analyze`, as a user types them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from command_line import kscout
from kscout.data.slices import SliceSet
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError, RunError
from policy_runs import write_run

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    names = ("weights", "epoch-0001", "epoch-0010")
    training = {"method": "ngreedy", "gamma": 0.9, "n_trajectories": 8}
    metrics = [{"epoch": e, "train_ssim": 0.5, "val_ssim": 0.4, "time_s": 1.0} for e in (1, 2)]
    return [
        write_run(tmp_path / f"ngreedy-seed{seed}", *names, seed=seed, metrics=metrics, **training)
        for seed in (0, 1)
    ]


def _evaluate(store: Path, out: Path, *more: object) -> str:
    return kscout(
        *("evaluate", "--data", store, "--reconstructor", "zero-filled", "--split", "test"),
        *("--n-initial", 3, "--steps", 4, "--trajectories", 2, "--seed", 0, "--out", out),
        *("--fixed-slices", 3, "--device", "cpu", *more),
    )


def _policies(*names: object) -> list[object]:
    return [word for name in names for word in ("--policy", name)]


def test_rows_and_columns_name_one_of_several_sizes(tmp_path: Path, test_slices: SliceSet) -> None:
    images = test_slices.magnitudes().numpy()
    writer = StoreWriter(tmp_path / "store", {"command": "test"})
    for volume, n_rows in (("whole", 18), ("cut", 15)):
        writer.append("test", volume, images[:, :n_rows])
    store, out = writer.finish().path, tmp_path / "results"
    with pytest.raises(DataError, match="sizes 18x13, 15x13, and one is needed"):
        _evaluate(store, out, *_policies("random"), "--size", 13)
    _evaluate(store, out, *_policies("random"), "--size", "15x13")
    with (out / "results.csv").open() as file:
        assert {row["volume"] for row in csv.DictReader(file)} == {"cut"}
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["n_rows"], summary["n_cols"]) == (15, 13)
    assert summary["request"]["size"] == [15, 13]


def test_evaluate_prints_a_table_that_marks_oracles_or_json_alone(
    store: Path, tmp_path: Path
) -> None:
    command = (store, tmp_path / "out", *_policies("random", "oracle"), "--limit", 3)
    told = _evaluate(*command)
    assert "oracle *" in told and "random *" not in told
    assert json.loads(_evaluate(*command, "--json"))["n_slices"] == 3


def _outputs(out: Path, name: str, pictures: bool = True) -> list[dict[str, Any]]:
    if pictures:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / f"{name}.json").read_text())
    return list(csv.DictReader((out / f"{name}.csv").open(newline="")))


def _on_data(store: Path, out: Path) -> tuple[object, ...]:
    return ("--data", store, "--reconstructor", "zero-filled", "--out", out, "--device", "cpu")


def test_options_without_effect_on_results_are_rejected(store: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    _evaluate(store, results, *_policies("random"))
    command = ("analyze", "policy", "random", "--results", results, "--out", tmp_path / "out")
    with pytest.raises(ConfigError, match="--data, --steps, --split, --limit would have no effect"):
        kscout(*command, "--data", store, "--split", "test", "--steps", 4, "--limit", 1)
    with pytest.raises(ConfigError, match="--seed names 2"):
        kscout(*command, "--seed", 0, "--seed", 1)
    assert not (tmp_path / "out").exists()
    kscout(*command, "--seed", 0, "--overwrite", "--json")


def test_of_unexplored_columns_a_few_are_printed(
    store: Path, tmp_path: Path, runs: list[Path]
) -> None:
    out = tmp_path / "analyses"
    command = ("analyze", "unexplored", runs[0], "random", *_on_data(store, out), "--rare", "0.05")
    told = kscout(*command)
    rows = _outputs(out, "unexplored", pictures=False)
    shown = [line.split()[:2] for line in told.splitlines() if " any " in line]
    assert shown == [["ngreedy", "any"], ["random", "any"]]
    assert f"{len(rows)} rows" in told
    assert kscout(*command, "--json").count('"policy"') == len(rows)
    totals = {row["policy"]: row for row in rows if row["column"] == "any"}
    assert float(totals["random"]["unexplored"]) == 0 == float(totals["random"]["best"]) - 1


@pytest.mark.usefixtures("undrawn")
def test_ratios_are_those_of_the_seed_with_the_best_validation(
    store: Path, tmp_path: Path, runs: list[Path]
) -> None:
    for run, scores in zip(runs, ((0.9, 0.5), (0.2, 0.6)), strict=True):
        lines = [
            {"epoch": i, "val_ssim": score, "time_s": 1.0}
            for i, score in enumerate(scores, start=1)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "analyses"
    command = ("analyze", "snr", *runs, *_on_data(store, out), "--trajectories", 2)
    command = (*command, "--batch-size", 2, "--passes", 2, "--epoch", 1)
    kscout(*command)
    (row,) = _outputs(out, "snr", pictures=False)
    assert (row["policy"], row["seed"], row["n_seeds"]) == ("ngreedy", "1", "2")
    assert (row["n_initial"], row["steps"]) == ("3", "4")
    kscout(*command, "--all-seeds", "--overwrite")
    assert [row["seed"] for row in _outputs(out, "snr", pictures=False)] == ["0", "1"]


def test_policies_need_data_unless_results_are_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data and --reconstructor"):
        kscout("analyze", "policy", "random", "--out", tmp_path)


def test_budget_is_required_if_no_run_has_one(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--n-initial and --steps"):
        kscout("analyze", "entropy", "random", *_on_data(store, tmp_path))


def test_evaluate_replaces_other_results_only_with_overwrite(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    _evaluate(store, out, *_policies("random", "center-out"))
    first = (out / "results.csv").read_bytes()
    _evaluate(store, out, *_policies("random", "center-out"))
    assert (out / "results.csv").read_bytes() == first
    # Another batch size is no other setting, though a machine may round its last digits otherwise.
    _evaluate(store, out, *_policies("random", "center-out"), "--batch-size", 2)
    first = (out / "results.csv").read_bytes()
    other = (*_policies("random", "center-out"), "--steps", 5)
    with pytest.raises(RunError, match=r"an evaluation of other settings \(steps is 4 there and 5"):
        _evaluate(store, out, *other)
    assert (out / "results.csv").read_bytes() == first
    _evaluate(store, out, *other, "--overwrite")
    assert json.loads((out / "summary.json").read_text())["steps"] == 5


@pytest.mark.parametrize(
    ("words", "mark", "product"),
    [
        (("evaluate", "--policy", "random"), "manifest.json", "dataset"),
        (("evaluate", "--policy", "random"), "config.toml", "run"),
        (("evaluate", "--policy", "random"), "campaign.json", "campaign"),
        (("analyze", "policy", "random"), "manifest.json", "dataset"),
    ],
)
def test_folders_of_other_products_take_no_results(
    store: Path, tmp_path: Path, words: tuple[str, ...], mark: str, product: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / mark).touch()
    with pytest.raises(RunError, match=rf"another product, a {product} \({mark}\); name another"):
        kscout(*words, *_on_data(store, out), "--n-initial", 4, "--steps", 2)
    assert [path.name for path in out.iterdir()] == [mark]


def test_results_of_unknown_settings_are_kept(store: Path, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"policies": []}')
    with pytest.raises(RunError, match="settings are not recorded; name another --out, or "):
        _evaluate(store, tmp_path, *_policies("random"))


@pytest.mark.usefixtures("undrawn")
def test_analyses_replace_other_tables_only_with_overwrite(
    tmp_path: Path, runs: list[Path]
) -> None:
    out = tmp_path / "analyses"
    kscout("analyze", "curves", *runs, "--out", out)
    kscout("analyze", "curves", *runs, "--out", out, "--json")
    before = (out / "curves.csv").read_bytes()
    with pytest.raises(RunError, match=r"holds curves.csv of other settings \(runs is .*; name"):
        kscout("analyze", "curves", runs[0], "--out", out)
    assert (out / "curves.csv").read_bytes() == before
    kscout("analyze", "curves", runs[0], "--out", out, "--overwrite")
    assert (out / "curves.csv").read_bytes() != before
