"""Evaluations from starts of one's own, with several columns a step, own budgets, and stopping."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from kscout.apps.cli import app
from kscout.apps.cli.evaluate import summary_table
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError
from kscout.evaluation.compare import Evaluation, evaluate
from kscout.evaluation.records.orders import NEVER, Orders, read_orders
from kscout.evaluation.records.results import read_scores
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.summaries.summary import read_summary
from kscout.reconstruction.zero_filled import ZeroFilled

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=2, batch_size=3)
EVERY = (
    *("random", "variable-density", "equispaced-one", "equispaced-two", "center-out", "fixed"),
    *("na-oracle", "oracle", "spectral-oracle", "conv"),
)
N_SLICES, N_COLS = 7, 13


def run(
    policies: tuple[str, ...], slices: SliceSet, setting: EvaluationSetting = SETTING, **more: Any
) -> Evaluation:
    keys = ("train", "out")
    files = {key: more.pop(key) for key in keys if key in more}
    counts = {"initial": "n_initial", "budget": "steps"}
    unset = {counts[key]: None for key in more if key in counts}
    setting = replace(setting, fixed_slices=4, **unset, **more)
    return evaluate(policies, slices, ZeroFilled(), setting, **files)


def orders(out: Path) -> dict[str, Orders]:
    return {one.policy: one for one in read_orders(out, read_summary(out))}


@final
class _Gainful(Policy):
    """Promises less of every later column."""

    is_stochastic = False
    gain_units = (0.004, 0.006, 0.003)

    def forward(self, seen: Observation) -> torch.Tensor:
        return torch.ones(seen.mask.shape)


@pytest.mark.slow
def test_every_policy_starts_from_the_same_columns(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    found = run(EVERY, test_slices, initial="2,6,9-10", train=train_slices, out=tmp_path)
    assert found.found.initial == ("2,6,9-10",)
    assert (found.found.n_initial, found.found.steps) == (4, 4)
    assert found.found.request is not None and found.found.request.initial == "2,6,9-10"
    starts = np.array([entry.values[:, 0] for entry in found.scores])
    np.testing.assert_allclose(starts, starts[:1].repeat(len(starts), axis=0), rtol=1e-6)
    for one in orders(tmp_path).values():
        assert ((one.order == 0).nonzero()[2].reshape(-1, 4) == [2, 6, 9, 10]).all()
        assert ((one.order > 0).sum(axis=-1) == 4).all()


@pytest.mark.slow
def test_central_columns_given_as_a_list_are_the_usual_start(test_slices: SliceSet) -> None:
    usual = run(("random", "oracle", "conv"), test_slices)
    listed = run(("random", "oracle", "conv"), test_slices, initial="5-7")
    for one, other in zip(usual.scores, listed.scores, strict=True):
        assert (one.values == other.values).all()


def test_a_file_has_an_entry_per_slice_of_the_split(test_slices: SliceSet, tmp_path: Path) -> None:
    file = tmp_path / "starts.json"
    file.write_text(json.dumps([[row, 6] for row in range(5)] + [[6, 7], [6]]))
    run(("random", "na-oracle"), test_slices, initial=file, out=tmp_path / "all")
    run(("random",), test_slices, initial=file, limit=3, out=tmp_path / "some")
    every, some = orders(tmp_path / "all"), orders(tmp_path / "some")
    assert [np.flatnonzero(row[0] == 0).tolist() for row in every["random"].order][4:] == [
        [4, 6],
        [6, 7],
        [6],
    ]
    # Slices 0, 2 and 4 of 7.
    np.testing.assert_array_equal(some["random"].order, every["random"].order[[0, 2, 4]])
    with pytest.raises(ConfigError, match="fitted on training slices, and the starts are those"):
        run(("fixed",), test_slices, initial=file, train=test_slices)


@pytest.mark.slow
def test_budgets_per_slice_count_the_start(test_slices: SliceSet, tmp_path: Path) -> None:
    budgets = [4, 5, 3, 9, 7, 7, 13]
    file = tmp_path / "budgets.txt"
    file.write_text("\n".join(map(str, budgets)))
    found = run(("random", "center-out"), test_slices, budget=file, out=tmp_path / "out").found
    assert (found.n_initial, found.steps) == (3, 10)
    assert found.budgets == tuple(budget - 3 for budget in budgets)
    for one in orders(tmp_path / "out").values():
        assert (one.order != NEVER).sum(axis=-1)[:, 0].tolist() == budgets
    for entry in found.policies:
        assert entry.n_acquired == pytest.approx(np.mean(budgets) - 3)
    even = run(("random",), test_slices, budget=7)
    assert (even.scores[0].values == run(("random",), test_slices).scores[0].values).all()
    for wrong, sentence in (
        ("2", "leaves none to acquire"),
        ("3", "leaves none"),
        ("14", "more than the 13"),
        ("9" * 30, "more than the 13"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            run(("random",), test_slices, budget=wrong)
    file.write_text("5\n5\n")
    with pytest.raises(DataError, match="2 budgets were given, the split has 7 slices"):
        run(("random",), test_slices, budget=file)


@pytest.mark.parametrize("columns_per_step", [2, 3])
def test_tables_hold_all_columns_of_a_step(
    test_slices: SliceSet, tmp_path: Path, columns_per_step: int
) -> None:
    setting = replace(SETTING, steps=5, columns_per_step=columns_per_step)
    found = run(("random", "center-out", "oracle"), test_slices, setting, out=tmp_path)
    rows = list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    n_steps = -(-5 // columns_per_step)
    for row in rows:
        step = int(row["step"])
        wanted = min(columns_per_step, 5 - (step - 1) * columns_per_step) if step else 0
        assert len(row["column"].split()) == wanted
    assert len(found.found.policies[0].by_step["ssim"].mean) == n_steps + 1
    for ours, stored in zip(found.scores, read_scores(tmp_path), strict=True):
        np.testing.assert_allclose(ours.values, stored.values, rtol=1e-6)
        assert (stored.n_acquired == 5).all()
    center = orders(tmp_path)["center-out"]
    assert center.columns(0) == [4, 8, 3, 9, 2]


@pytest.mark.slow
def test_a_stopping_rule_trades_columns_for_quality(test_slices: SliceSet, tmp_path: Path) -> None:
    costs, scores = [], []
    for threshold in (-1.0, 0.01, 0.03, 1.0):
        setting = replace(SETTING, steps=8, stop_below=threshold, protocol="paper")
        out = tmp_path / str(threshold)
        found = run(("oracle",), test_slices, setting, out=out)
        (entry,) = found.found.policies
        assert entry.n_acquired is not None
        costs.append(entry.n_acquired)
        scores.append(entry.ssim)
        (stored,) = read_scores(out)
        assert stored.n_acquired is not None and stored.n_acquired.mean() == entry.n_acquired
    assert costs[0] == 8 and costs[-1] == 0 and costs == sorted(costs, reverse=True)
    assert 8 > costs[1] > costs[2] > 0 and scores == sorted(scores, reverse=True)
    console = Console(width=110, record=True)
    console.print(summary_table(found.found))
    text = " ".join(console.export_text().split())
    assert "stopped below 1" in text and "oracle * 0.00 0.8453" in text
    with pytest.raises(ConfigError, match="predicts no gain in SSIM to stop below"):
        run(("oracle", "random"), test_slices, replace(SETTING, stop_below=0.01))


@pytest.fixture
def store(tmp_path: Path, test_slices: SliceSet) -> Path:
    writer = StoreWriter(tmp_path / "store", {"command": "test"})
    for volume in dict.fromkeys(test_slices.volumes):
        writer.append("test", volume, test_slices.of_volumes(volume).magnitudes().numpy())
    return writer.finish().path


@pytest.mark.slow
def test_the_command_writes_masks_that_it_reads_as_starts(store: Path, tmp_path: Path) -> None:
    def call(out: str, *words: object) -> str:
        common = ("evaluate", "--data", store, "--reconstructor", "zero-filled", "--device", "cpu")
        every = [*common, "--trajectories", 1, "--policy", "random", "--out", tmp_path / out]
        found = CliRunner().invoke(app, [str(word) for word in [*every, *words]])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found.stdout

    first = call("first", "--initial", "0,5-7", "--steps", 3, "--columns-per-step", 2, "--masks")
    assert "4 + 3 of 13 columns (own start), 2 per step" in " ".join(first.split())
    saved = tmp_path / "first" / "masks"
    assert (tmp_path / "first" / "masks.png").stat().st_size > 1000
    with np.load(saved / "random.npz") as file:
        order = file["order"]
    assert order.shape == (N_SLICES, 1, N_COLS) and order.max() == 3
    for number, name in enumerate(("random.txt", "random.npz")):
        call(f"then{number}", "--initial", saved / name, "--budget", 9)
        (again,) = read_orders(tmp_path / f"then{number}", read_summary(tmp_path / f"then{number}"))
        assert ((again.order == 0) == (order != NEVER)).all()
        assert ((again.order > 0).sum(axis=-1) == 2).all()
    with pytest.raises(ConfigError, match=r"no policy has them; add --n-initial and"):
        call("wrong", "--steps", 3)
    with pytest.raises(ConfigError, match="either --n-initial or --initial"):
        call("wrong", "--initial", 3, "--n-initial", 2, "--steps", 3)
    with pytest.raises(ConfigError, match="either --steps or --budget"):
        call("wrong", "--initial", 3, "--steps", 3, "--budget", 4)
    assert not (tmp_path / "wrong").exists()


def test_damaged_results_hold_no_masks(test_slices: SliceSet, tmp_path: Path) -> None:
    summary = run(("center-out",), test_slices, out=tmp_path).found
    assert orders(tmp_path)["center-out"].columns(0) == [4, 8, 3, 9]
    for wrong in (
        replace(summary, n_cols=10**15),
        replace(summary, n_cols=4),
        replace(summary, n_initial=10**12),
        replace(summary, initial=("0-99",)),
        replace(summary, initial=("0", "1")),
    ):
        with pytest.raises(DataError, match="holds a row that is not a result"):
            read_orders(tmp_path, wrong)
    file = tmp_path / "results.csv"
    file.write_text(file.read_text().replace(",8,", ",x,"))
    with pytest.raises(DataError, match="holds a row that is not a result"):
        read_orders(tmp_path, summary)


@pytest.mark.slow
def test_a_resumed_evaluation_counts_columns_too(test_slices: SliceSet, tmp_path: Path) -> None:
    setting = replace(SETTING, steps=8, stop_below=0.005)

    def stop(step: Any) -> None:
        if step.what.startswith("oracle") is False:
            raise KeyboardInterrupt

    wanted = ("oracle", ("mine", _Gainful()))
    with pytest.raises(KeyboardInterrupt):
        evaluate(wanted, test_slices, ZeroFilled(), setting, out=tmp_path / "a", on_step=stop)
    again = evaluate(wanted, test_slices, ZeroFilled(), setting, out=tmp_path / "a")
    whole = evaluate(wanted, test_slices, ZeroFilled(), setting, out=tmp_path / "b")
    assert again.found.policies == whole.found.policies
    names = [(tmp_path / name / "results.csv").read_bytes() for name in "ab"]
    assert names[0] == names[1]
