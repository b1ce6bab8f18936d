"""Average policies: counted by hand, from runs and from tables."""

from pathlib import Path

import pytest
import torch

from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.average_policy import (
    AveragePolicy,
    average_policy,
    average_policy_of_results,
    average_policy_rows,
    best_seed,
    sampled_by_step,
    start_columns,
)
from kscout.evaluation.compare import EvaluationSetting, evaluate
from kscout.evaluation.trajectories import AcquisitionPlan
from kscout.policies.center_out import CenterOut
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled

PLAN = AcquisitionPlan(n_initial=3, horizon=4, n_trajectories=1, batch_size=2)


def test_fractions_are_counted_by_step() -> None:
    start = torch.tensor([False, False, True, False, False])
    columns = torch.tensor([[0, 1], [1, 4], [1, 0], [3, 1]])
    found = sampled_by_step(columns, start)
    expected = torch.tensor([[0.25, 0.5, 1.0, 0.25, 0.0], [0.5, 1.0, 1.0, 0.25, 0.25]])
    torch.testing.assert_close(found, expected)


def test_random_policy_samples_all_columns_alike(test_slices: SliceSet) -> None:
    plan = AcquisitionPlan(n_initial=3, horizon=4, n_trajectories=200)
    found = average_policy(Random(), test_slices, ZeroFilled(), plan)
    free = ~found.start
    for step in range(4):
        # By step t each of the 10 free columns has been taken with probability t / 10.
        expected = torch.full((10,), (step + 1) / 10)
        torch.testing.assert_close(found.sampled[step, free], expected, atol=0.05, rtol=0)
    assert found.probabilities is not None
    torch.testing.assert_close(found.probabilities.sum(dim=1), torch.ones(4))
    torch.testing.assert_close(found.probabilities[0, free], torch.full((10,), 0.1))
    assert (found.probabilities[:, found.start] == 0).all()


def test_deterministic_policy_has_no_probabilities(test_slices: SliceSet) -> None:
    found = average_policy(CenterOut(n_cols=13), test_slices, ZeroFilled(), PLAN)
    assert found.probabilities is None
    assert found.sampled.unique().tolist() == [0.0, 1.0]
    assert found.sampled.sum(dim=1).tolist() == [4, 5, 6, 7]


def test_table_gives_the_same_as_the_run(test_slices: SliceSet, tmp_path: Path) -> None:
    evaluate(
        ("random",),
        test_slices,
        ZeroFilled(),
        EvaluationSetting(plan=PLAN, seeds=(4, 9)),
        out=tmp_path,
    )
    plan = AcquisitionPlan(n_initial=3, horizon=4, n_trajectories=1, seed=9)
    expected = average_policy(Random(), test_slices, ZeroFilled(), plan)
    found = average_policy_of_results(tmp_path, "random", n_cols=13, n_initial=3, seed=9)
    torch.testing.assert_close(found.sampled, expected.sampled)
    best = average_policy_of_results(tmp_path, "random", n_cols=13, n_initial=3)
    other = average_policy_of_results(
        tmp_path, "random", n_cols=13, n_initial=3, seed=best_seed(tmp_path, "random")
    )
    torch.testing.assert_close(best.sampled, other.sampled)
    with pytest.raises(DataError, match="no policy 'greedy'"):
        average_policy_of_results(tmp_path, "greedy", n_cols=13, n_initial=3)


def test_rows_name_step_and_column() -> None:
    start = torch.tensor([False, True, False])
    one = AveragePolicy(sampled_by_step(torch.tensor([[0, 2]]), start), start)
    rows = average_policy_rows({"fixed": one})
    assert len(rows) == 6
    assert rows[0] == {
        "policy": "fixed",
        "step": 1,
        "column": 0,
        "sampled": 1.0,
        "probability": None,
    }
    assert start_columns([one]) == [1]
    with pytest.raises(ConfigError, match="different columns"):
        start_columns([one, AveragePolicy(one.sampled, ~start)])
