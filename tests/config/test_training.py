"""Each estimator has settings of its own, and a table's method picks them."""

import tomllib

import pytest

from kscout.config import (
    GreedyTraining,
    NonGreedyTraining,
    PolicyConfig,
    PolicyTraining,
    read,
    to_table,
    to_toml,
    training_of,
)
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS


@pytest.mark.parametrize("method", ESTIMATORS)
def test_the_method_picks_the_class_whose_defaults_are_the_preset(method: str) -> None:
    preset = training_of(method)
    config = read(PolicyConfig, {"training": {"method": method, "n_epochs": 3}})
    assert type(config.training) is type(preset) is not PolicyTraining
    assert to_table(config.training) == {**to_table(preset), "n_epochs": 3}
    assert read(PolicyConfig, tomllib.loads(to_toml(config))) == config


def test_presets_are_the_papers() -> None:
    assert (GreedyTraining().decay_epochs, GreedyTraining().decay_factor) == ((40,), 0.1)
    non_greedy = NonGreedyTraining()
    assert (non_greedy.decay_epochs, non_greedy.decay_factor) == ((10, 20, 30, 40), 0.5)
    assert (non_greedy.gamma, non_greedy.n_trajectories) == (1.0, 8)


def test_a_setting_of_another_estimator_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'training\.gamma'"):
        read(PolicyConfig, {"training": {"method": "greedy", "gamma": 1.0}})
    with pytest.raises(ConfigError, match=r"GreedyTraining has no method 'ngreedy'; .*NonGreedy"):
        GreedyTraining(method="ngreedy")


@pytest.mark.parametrize("method", ["Greedy", 3])
def test_a_method_that_does_not_exist_is_told(method: object) -> None:
    with pytest.raises(ConfigError, match=r"training\.method"):
        read(PolicyConfig, {"training": {"method": method}})


def test_runs_are_called_after_what_varies() -> None:
    assert GreedyTraining().label == "greedy"
    assert (NonGreedyTraining().label, NonGreedyTraining(gamma=0.9).label) == (
        "ngreedy-1",
        "ngreedy-0.9",
    )
