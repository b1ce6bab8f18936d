"""Tables from run folders and summaries: curves and gammas."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kscout.errors import DataError, RunError
from kscout.evaluation.analyses import run_analysis, write_table
from kscout.evaluation.analyses.curves import CurveRow, Curves
from kscout.evaluation.analyses.files import find_tables
from kscout.evaluation.analyses.gammas import Gammas, gamma_rows
from kscout.evaluation.records.run_names import named_runs
from kscout.evaluation.summaries.summary import Score, Summary, Training
from policy_runs import write_run
from synthetic_results import make_summary


def _line(epoch: int, train: float, val: float, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "train_ssim": train, "val_ssim": val, "time_s": 2.0, **more}


def _run(path: Path, seed: int, *metrics: dict[str, Any], **changes: Any) -> Path:
    store = {"device": "cpu", "inputs": {"store": changes.pop("store", "ab")}}
    return write_run(path, seed=seed, metrics=metrics, provenance=store, **changes)


def _curves(*runs: Path) -> list[CurveRow]:
    return Curves().compute([str(run) for run in runs])


def test_curves_are_means_over_seeds_of_epochs_that_all_reached(tmp_path: Path) -> None:
    one = _run(tmp_path / "greedy-seed1", 1, _line(1, 0.5, 0.4), _line(2, 0.6, 0.5))
    two = _run(tmp_path / "greedy-seed0", 0, _line(1, 0.7, 0.2))
    train, val = _curves(one, two)
    assert (train.policy, train.series, train.epoch, train.n_seeds) == (
        "greedy",
        "train_ssim",
        1,
        2,
    )
    assert train.mean == pytest.approx(0.6)
    assert val.std == pytest.approx(0.2 / 2**0.5)
    assert (val.series, val.epoch) == ("val_ssim", 1)


def test_runs_of_other_settings_are_no_seeds_of_a_method(tmp_path: Path) -> None:
    runs = [
        _run(tmp_path / f"{horizon}" / f"greedy-seed{seed}", seed, line, horizon=horizon)
        for horizon, line in ((4, _line(1, 0.7, 0.7)), (9, _line(1, 0.3, 0.3)))
        for seed in (0, 1)
    ]
    rows = _curves(*runs)
    assert [(row.policy, row.mean, row.n_seeds) for row in rows[::2]] == [
        ("greedy, 3+4", 0.7, 2),
        ("greedy, 3+9", 0.3, 2),
    ]


def test_names_of_runs_contain_the_fewest_distinct_traits(tmp_path: Path) -> None:
    folders = {
        "a/greedy-seed0": {"seed": 0},
        "a/greedy-seed1": {"seed": 1, "horizon": 9},
        "b/greedy-seed1": {"seed": 1, "horizon": 9, "store": "0123456789"},
        "c/greedy-seed0": {"seed": 0},
        "c/other": {"seed": 0},
    }
    runs = [_run(tmp_path / path, **more) for path, more in folders.items()]
    assert [name for name, _ in named_runs(runs)] == [
        "greedy, 3+4, store ab, run 1",
        "greedy, 3+9, store ab, run 1",
        "greedy, 3+9, store 01234567, run 1",
        "greedy, 3+4, store ab, run 2",
        "other",
    ]


def test_run_without_epochs_has_no_curve(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no epoch yet"):
        _curves(_run(tmp_path / "greedy", 0))


def _summary(*policies: tuple[str, float, Training | None], **changes: Any) -> Summary:
    like = make_summary().policies[0]
    entries = []
    for name, ssim, training in policies:
        final = {metric: Score(ssim, None, None) for metric in like.final}
        entries.append(replace(like, policy=name, final=final, training=training))
    return replace(make_summary(), n_initial=4, steps=5, policies=tuple(entries), **changes)


GREEDY = ("g", 0.72, Training("greedy", 1.0))


def test_gammas_are_sorted_with_greedy_first() -> None:
    summary = _summary(
        ("ng1", 0.71, Training("ngreedy", 1.0)),
        ("ng0", 0.70, Training("ngreedy", 0.0)),
        GREEDY,
        ("random", 0.5, None),
    )
    rows = gamma_rows([summary])
    assert [(row.policy, row.gamma) for row in rows] == [("g", None), ("ng0", 0.0), ("ng1", 1.0)]
    with pytest.raises(DataError, match="no policy"):
        gamma_rows([_summary(("random", 0.5, None))])


def test_the_line_of_greedy_is_that_of_no_other_method() -> None:
    discounted = ("ng1", 0.71, Training("ngreedy", 1.0))
    other = ("d", 0.9, Training("dense", None))
    for policies, line in (([other, discounted, GREEDY], [GREEDY[1]]), ([other, discounted], [])):
        (axes,) = Gammas().figures(gamma_rows([_summary(*policies)]), Path())["gammas"].axes
        found = [one.get_ydata()[0] for one in axes.lines if one.get_label() == "greedy"]
        assert found == line


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        ({"protocol": "paper"}, {"protocol": "blind"}, r"protocol \(paper, blind\)"),
        ({"limit": None}, {"limit": 5}, r"limit \(not set, 5\)"),
        (
            {"store": "knee", "store_fingerprint": "ab"},
            {"store": "knee", "store_fingerprint": "cd"},
            r"store \(ab, cd\)",
        ),
        ({"reconstructor": "unet"}, {"reconstructor": "zero-filled"}, "reconstructor"),
    ],
)
def test_gammas_of_other_conditions_are_rejected(
    here: dict[str, Any], there: dict[str, Any], told: str
) -> None:
    with pytest.raises(DataError, match=f"differ in {told}"):
        gamma_rows([_summary(GREEDY, **here), _summary(GREEDY, **there)])


def test_gammas_of_one_reconstructor_under_two_names_are_one_table() -> None:
    same = _summary(GREEDY, reconstructor_fingerprint="ab", reconstructor="/runs/unet")
    rows = gamma_rows([same, replace(same, reconstructor="runs/unet", steps=9)])
    assert [row.steps for row in rows] == [5, 9]


def test_tables_hold_the_same_in_both_formats(tmp_path: Path) -> None:
    write_table(tmp_path, Curves, [CurveRow("a", "val_ssim", 3, 1.5, None, 1)])
    (row,) = csv.DictReader((tmp_path / "curves.csv").open(newline=""))
    assert row["mean"] == "1.5" and row["std"] == ""
    assert json.loads((tmp_path / "curves.json").read_text())[0]["std"] is None


def test_a_series_that_no_run_logs_is_reported(tmp_path: Path) -> None:
    write_table(tmp_path, Curves, [CurveRow("a", "val_ssim", 3, 1.5, None, 1)])
    file = tmp_path / "curves.json"
    file.write_text(file.read_text().replace("val_ssim", "x"))
    with pytest.raises(DataError, match=r"curves\.json.*series is 'x'; .*train_ssim, val_ssim"):
        find_tables(tmp_path)


@pytest.mark.parametrize("n_files", [0, 1, 2])
def test_an_analysis_killed_between_its_files_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_files: int
) -> None:
    given = [str(_run(tmp_path / "greedy-seed1", 1, _line(1, 0.5, 0.4)))]
    out, rename, done = tmp_path / "out", Path.replace, []

    def killed(self: Path, target: Path) -> Path:
        if len(done) == n_files:
            raise KeyboardInterrupt
        done.append(target)
        return rename(self, target)

    monkeypatch.setattr(Curves, "figures", lambda *_: {})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        run_analysis(Curves(), given, out=out)
    assert run_analysis(Curves(), given, out=out) == Curves().compute(given)
    names = {path.name for path in out.iterdir()} - {".lock"}
    assert names == {"curves.csv", "curves.json", "curves.settings.json"}
