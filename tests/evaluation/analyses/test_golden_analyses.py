"""Analyses of small seeded policies give the numbers that are stored here.

The tolerance allows for other CPUs; other draws change the values by more.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kscout.config import to_table
from kscout.config.options import with_options
from kscout.evaluation import EvaluationSetting, evaluate, run_analysis
from kscout.names import ANALYSES
from policy_runs import write_run

pytestmark = pytest.mark.slow

ON_SLICES = {"reconstructor": "zero-filled", "n_initial": 3, "steps": 3, "device": "cpu"}
OPTIONS: dict[str, dict[str, Any]] = {
    "policy": ON_SLICES,
    "entropy": {**ON_SLICES, "trajectories": 3},
    "unexplored": {**ON_SLICES, "rare": 0.06},
    "snr": {
        **{"reconstructor": "zero-filled", "split": "test", "device": "cpu"},
        **{"trajectories": 3, "batch_size": 3, "passes": 2},
    },
    "examples": {**ON_SLICES, "slice": ["a:2", "5"]},
    "reconstructions": {"acceleration": [2.0, 3.0], "center_fraction": 0.2, "device": "cpu"},
}
GOLDEN = {
    "policy": {"sampled": 45.0, "probability": 6.0},
    "entropy": {"marginal": 13.653252, "conditional": 12.957163, "mutual_information": 0.696089},
    "unexplored": {"best": 6.0, "unexplored": 1.238095, "gain": 0.241362, "forgone": 0.108751},
    "snr": {
        "n_batches": 6.0,
        "snr_paper": 3.208854,
        "std_paper": 0.355247,
        "snr_reference": 3.930028,
        "std_reference": 0.435087,
    },
    "examples": {"ssim": 5.453226},
    "reconstructions": {
        "acceleration": 10.0,
        "n_center": 12.0,
        "n_slices": 28.0,
        "n_volumes": 12.0,
        "ssim": 3.529115,
        "ssim_low": 3.241871,
        "ssim_high": 3.81636,
        "psnr": 108.040407,
        "nmse": 0.113536,
    },
    "masks": {"n_slices": 14.0, "n_trajectories": 4.0, "n_acquired": 6.0},
    "gammas": {"ssim_mean": 0.913325, "psnr_mean": 28.597754},
    "policy of results": {"sampled": 30.0},
}
"""Sums of the columns of each table that hold measured numbers."""


def sums(rows: list[Any]) -> dict[str, float]:
    """Return the sum of each column of numbers."""
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        for key, value in to_table(row).items():
            if isinstance(value, int | float):
                totals[key] += value
    return dict(totals)


def check(name: str, rows: list[Any]) -> None:
    totals = sums(rows)
    expected = GOLDEN[name]
    assert {key: totals[key] for key in expected} == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "greedy", "weights", "epoch-0001", "epoch-0004", horizon=3)


def results(run: Path, store: Path, out: Path) -> Path:
    setting = EvaluationSetting(n_initial=3, steps=3, trajectories=2, device="cpu")
    evaluate(["random", str(run)], store, "zero-filled", setting, out=out)
    return out


@pytest.mark.parametrize("name", OPTIONS)
def test_an_analysis_on_slices_gives_the_stored_values(
    name: str, run: Path, store: Path, tmp_path: Path, undrawn: None
) -> None:
    analysis = with_options(ANALYSES.resolve(name), {"data": store, **OPTIONS[name]})
    given = {
        "runs": [run],
        "policies": [run, "random", "center-out"],
        "reconstructions": ["zero-filled", "total-variation"],
    }[analysis.reads]
    rows = run_analysis(analysis, list(map(str, given)), out=tmp_path / "out")
    check(name, rows)


def test_an_analysis_of_results_gives_the_stored_values(
    run: Path, store: Path, tmp_path: Path, undrawn: None
) -> None:
    folder = results(run, store, tmp_path / "results")
    for name in ("masks", "gammas"):
        rows = run_analysis(ANALYSES.resolve(name)(), [str(folder)], out=tmp_path / "out")
        check(name, rows)
    average = with_options(ANALYSES.resolve("policy"), {"results": folder})
    rows = run_analysis(average, ["random", "greedy"], out=tmp_path / "out")
    check("policy of results", rows)
