"""The table of results and the tables of the docs agree, and bundled weights reproduce its rows."""

import importlib
from pathlib import Path

import pytest
import results
import tables

from kscout.apps.demo import N_SEEDS, N_SEEDS_ABOVE
from kscout.data.generate import make_store
from kscout.data.making import MakeSettings
from kscout.evaluation import EvaluationSetting, evaluate

ROWS = results.read_results()


def test_tables_of_the_docs_agree_with_the_results() -> None:
    assert tables.differing(write=False) == []


def test_no_interval_is_over_fewer_than_three_volumes() -> None:
    for row in ROWS:
        assert bool(row.low) == bool(row.high), row
        assert not row.low or float(row.low) <= float(row.difference) <= float(row.high), row
        assert not row.low or not row.n_volumes or int(row.n_volumes) >= 3, row


def test_a_new_row_replaces_the_row_that_measured_the_same(tmp_path: Path) -> None:
    path, row = tmp_path / "results.csv", results.result(experiment="a", method="b", value=0.5)
    results.record([row, results.result(experiment="a", method="c", value=1)], path)
    results.record([results.result(experiment="a", method="b", value=0.25)], path)
    assert {one.method: one.value for one in results.read_results(path)} == {"b": "0.25", "c": "1"}


def test_no_number_is_in_two_rows(tmp_path: Path) -> None:
    results.record(ROWS, tmp_path / "results.csv")
    assert results.read_results(tmp_path / "results.csv") == ROWS


def test_the_demo_states_how_many_of_the_recorded_seeds_are_above_zero() -> None:
    rows = results.select(ROWS, experiment="demo-seeds")
    assert [row.seed for row in rows] == [str(seed) for seed in range(N_SEEDS)]
    assert sum(float(row.low) > 0 for row in rows) == N_SEEDS_ABOVE


def test_every_experiment_finds_what_it_imports() -> None:
    for path in results.RESULTS.parent.glob("*.py"):
        importlib.import_module(path.stem)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["knee-unet", "knee-general-unet"])
def test_bundled_weights_reproduce_rows(network: str, tmp_path: Path) -> None:
    make_store(tmp_path, MakeSettings(kind="knee", volumes=(0, 0, 3), slices=1, size=128))
    rows = results.select(ROWS, experiment="recomputed", reconstruction=network)
    names = [row.method for row in rows]
    setting = EvaluationSetting(
        n_initial=16, steps=16, trajectories=1, argmax=True, protocol=rows[0].protocol, device="cpu"
    )
    found = evaluate(names, tmp_path, network, setting).found
    computed = {one.policy: one.ssim for one in found.policies}
    assert len(rows) == 2
    assert computed == pytest.approx({row.method: float(row.value) for row in rows}, abs=2e-4)
