"""Evaluations from starts of one's own, and with several columns a step."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import kscout
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.compare import Evaluation, evaluate
from kscout.evaluation.records.orders import Orders, read_orders
from kscout.evaluation.records.results import read_scores
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.summaries.summary import read_summary
from kscout.reconstruction.zero_filled import ZeroFilled

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=2, batch_size=3, fixed_slices=4)
EVERY = (
    *("random", "variable-density", "equispaced-one", "equispaced-two", "center-out", "fixed"),
    *("na-oracle", "oracle", "spectral-oracle", "conv"),
)
N_SLICES, N_COLS = 7, 13


LISTED = replace(SETTING, n_initial=None)


def run(
    policies: tuple[str, ...], slices: SliceSet, setting: EvaluationSetting = SETTING, **files: Any
) -> Evaluation:
    return evaluate(policies, slices, ZeroFilled(), setting, **files)


def orders(out: Path) -> dict[str, Orders]:
    return {one.policy: one for one in read_orders(out, read_summary(out))}


@pytest.mark.slow
def test_every_policy_starts_from_the_same_columns(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    setting = replace(LISTED, initial="2,6,9-10")
    found = run(EVERY, test_slices, setting, train=train_slices, out=tmp_path)
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
    listed = run(("random", "oracle", "conv"), test_slices, replace(LISTED, initial="5-7"))
    for one, other in zip(usual.scores, listed.scores, strict=True):
        assert (one.values == other.values).all()


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
    center = orders(tmp_path)["center-out"]
    assert center.columns(0) == [4, 8, 3, 9, 2]


@pytest.mark.slow
def test_the_command_writes_masks_of_own_starts(store: Path, tmp_path: Path) -> None:
    def call(out: str, *words: object) -> str:
        common = ("evaluate", "--data", store, "--reconstructor", "zero-filled", "--device", "cpu")
        more = ("--trajectories", 1, "--policy", "random", "--out", tmp_path / out)
        return kscout(*common, *more, *words)

    first = call("first", "--initial", "0,5-7", "--steps", 3, "--columns-per-step", 2)
    assert "4 + 3 of 13 columns (own start), 2 per step" in " ".join(first.split())
    kscout("analyze", "masks", tmp_path / "first", "--out", tmp_path / "analyses")
    assert (tmp_path / "analyses" / "masks.png").stat().st_size > 1000
    (saved,) = (tmp_path / "analyses" / "masks").rglob("random.npz")
    with np.load(saved) as file:
        order = file["order"]
    assert order.shape == (N_SLICES, 1, N_COLS) and order.max() == 3
    assert np.flatnonzero(order[0, 0] == 0).tolist() == [0, 5, 6, 7]
    lines = saved.with_suffix(".txt").read_text().splitlines()[2:]
    assert len(lines) == N_SLICES and all(line.startswith("0,5-7; ") for line in lines)
    with pytest.raises(ConfigError, match=r"no policy has them; add --n-initial and"):
        call("wrong", "--steps", 3)
    with pytest.raises(ConfigError, match="either --n-initial or --initial"):
        call("wrong", "--initial", 3, "--n-initial", 2, "--steps", 3)
    assert not (tmp_path / "wrong").exists()


def test_damaged_results_hold_no_masks(test_slices: SliceSet, tmp_path: Path) -> None:
    summary = run(("center-out",), test_slices, out=tmp_path).found
    assert orders(tmp_path)["center-out"].columns(0) == [4, 8, 3, 9]
    for wrong in (
        replace(summary, n_cols=10**15),
        replace(summary, n_cols=4),
        replace(summary, n_initial=10**12),
        replace(summary, initial=("0-99",)),
    ):
        with pytest.raises(DataError, match="holds a row that is not a result"):
            read_orders(tmp_path, wrong)
    file = tmp_path / "results.csv"
    file.write_text(file.read_text().replace(",8,", ",x,"))
    with pytest.raises(DataError, match="holds a row that is not a result"):
        read_orders(tmp_path, summary)
