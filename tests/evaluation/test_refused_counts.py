"""Counts that an evaluation or an analysis could not run with are refused by name."""

import pytest

from kscout.config.options import with_options
from kscout.errors import ConfigError
from kscout.evaluation.policy_noise import NoiseSetting
from kscout.evaluation.running.setting import EvaluationSetting
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.evaluation.summaries.conditions import EvaluationRequest
from kscout.names import ANALYSES

COUNTS = [
    ("entropy", "trajectories"),
    ("entropy", "batch_size"),
    ("policy", "batch_size"),
    ("overlooked", "batch_size"),
    ("snr", "trajectories"),
    ("snr", "batch_size"),
    ("snr", "passes"),
]


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(("analysis", "name"), COUNTS)
def test_an_analysis_refuses_a_count_of_nothing(analysis: str, name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}; it must be [12] or more"):
        with_options(ANALYSES.resolve(analysis), {name: value})


@pytest.mark.parametrize("name", ["trajectories", "fixed_slices"])
def test_an_evaluation_refuses_a_count_of_nothing(name: str) -> None:
    asked = {"data": "store", "reconstructor": "zero-filled", "policies": ["random"], name: 0}
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be 1 or more"):
        with_options(EvaluationRequest, asked)


@pytest.mark.parametrize("name", ["n_trajectories", "batch_size"])
def test_a_plan_refuses_a_count_of_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be 1 or more"):
        AcquisitionPlan(**{name: 0})
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be 1 or more"):
        NoiseSetting(**{name: 0})
    with pytest.raises(ConfigError, match="fixed_slices is 0; it must be 1 or more"):
        EvaluationSetting(AcquisitionPlan(), n_fixed_slices=0)


def test_no_batch_size_leaves_it_to_the_device() -> None:
    assert AcquisitionPlan(batch_size=None).batch_size is None
