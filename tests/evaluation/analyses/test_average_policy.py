"""Average policies: counted by hand, from runs and from tables."""

from pathlib import Path

import numpy as np
import pytest

from kscout.acquisition.plan import Plan
from kscout.data.slices import SliceSet
from kscout.errors import DataError
from kscout.evaluation.analyses.average_policy import (
    average_policies_of_results,
    average_policy,
    best_seeds,
    sampled_by_step,
)
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.physics.sampling import center_mask
from kscout.policies.fixed import CenterOut
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled

PLAN = Plan(start=3, horizon=4, n_trajectories=1, batch_size=2)


def test_fractions_are_counted_by_step() -> None:
    start = np.array([False, False, True, False, False])
    columns = np.array([[0, 1], [1, 4], [1, 0], [3, 1]])
    found = sampled_by_step(columns, np.tile(start, (4, 1)))
    assert found.tolist() == [[0.25, 0.5, 1.0, 0.25, 0.0], [0.5, 1.0, 1.0, 0.25, 0.25]]


def test_random_policy_samples_all_columns_alike(test_slices: SliceSet) -> None:
    plan = Plan(start=3, horizon=4, n_trajectories=200)
    found = average_policy(Random(), test_slices, ZeroFilled(), plan)
    start = center_mask(13, 3).numpy()
    for step in range(4):
        # By step t each of the 10 free columns has been taken with probability t / 10.
        np.testing.assert_allclose(found.sampled[step, ~start], (step + 1) / 10, atol=0.05)
    assert (found.sampled[:, start] == 1).all()
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(found.probabilities[0, ~start], 0.1, rtol=1e-6)
    assert (found.probabilities[:, start] == 0).all()


def test_deterministic_policy_has_no_probabilities(test_slices: SliceSet) -> None:
    found = average_policy(CenterOut(n_cols=13), test_slices, ZeroFilled(), PLAN)
    assert found.probabilities is None
    assert np.unique(found.sampled).tolist() == [0.0, 1.0]
    assert found.sampled.sum(axis=1).tolist() == [4, 5, 6, 7]


def test_table_gives_the_same_as_the_run(test_slices: SliceSet, tmp_path: Path) -> None:
    setting = EvaluationSetting(n_initial=3, steps=4, trajectories=1, seeds=(4, 9))
    summary = evaluate(("random",), test_slices, ZeroFilled(), setting, out=tmp_path).found
    plan = Plan(start=3, horizon=4, n_trajectories=1, seed=9)
    expected = average_policy(Random(), test_slices, ZeroFilled(), plan)
    found = average_policies_of_results(tmp_path, ["random"], summary, seed=9)["random"]
    np.testing.assert_array_equal(found.sampled, expected.sampled)
    best = average_policies_of_results(tmp_path, ["random"], summary)["random"]
    seed = best_seeds(tmp_path, ["random"])["random"]
    other = average_policies_of_results(tmp_path, ["random"], summary, seed=seed)["random"]
    np.testing.assert_array_equal(best.sampled, other.sampled)
    with pytest.raises(DataError, match="no policy 'greedy'"):
        average_policies_of_results(tmp_path, ["greedy"], summary)
    with pytest.raises(DataError, match="'random' with seed 5"):
        average_policies_of_results(tmp_path, ["random"], summary, seed=5)


def test_several_policies_are_averaged_each_with_its_best_seed(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    setting = EvaluationSetting(n_initial=3, steps=4, trajectories=1, seeds=(4, 9))
    names = ["random", "center-out"]
    summary = evaluate(names, test_slices, ZeroFilled(), setting, out=tmp_path).found
    found = average_policies_of_results(tmp_path, names[::-1], summary)
    assert list(found) == names[::-1]
    for name in names:
        alone = average_policies_of_results(tmp_path, [name], summary)[name]
        np.testing.assert_array_equal(found[name].sampled, alone.sampled)
