"""Settings are read strictly, and come back unchanged from their own TOML."""

import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

import kscout.config
from kscout.config import (
    ACQUISITIONS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    Component,
    GreedyTraining,
    NonGreedyTraining,
    PolicyConfig,
    PolicyTraining,
    ReconstructorConfig,
    learning_rate_at,
    load,
    read,
    settle,
    to_table,
    to_toml,
    training_of,
)
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize(
    "config",
    [
        ReconstructorConfig(Component("unet", {"n_channels": 5, "note": 'a "b" \\ é'})),
        PolicyConfig(training=NonGreedyTraining(), acquisition=ACQUISITIONS["brain-long"]),
        PolicyConfig(acquisition=AcquisitionSetting(3, 5)),
        ReconstructorConfig(training=RECONSTRUCTOR_TRAININGS["unet"]),
    ],
)
def test_settings_survive_toml(config: ReconstructorConfig | PolicyConfig) -> None:
    assert read(type(config), tomllib.loads(to_toml(config))) == config


@pytest.mark.usefixtures("unchecked")
def test_numpy_numbers_become_settings_that_toml_knows() -> None:
    config = PolicyConfig(
        Component("conv", {"n_channels": np.int64(5), "order": np.arange(3), "flag": np.True_}),
        AcquisitionSetting(n_initial=np.int32(3)),
        NonGreedyTraining(
            gamma=np.linspace(0, 1, 5)[1], seed=np.int64(7), keep_epochs=np.arange(2)
        ),
    )
    plain = PolicyConfig(
        Component("conv", {"n_channels": 5, "order": [0, 1, 2], "flag": True}),
        AcquisitionSetting(n_initial=3),
        NonGreedyTraining(gamma=0.25, seed=7, keep_epochs=(0, 1)),
    )
    assert to_toml(config) == to_toml(plain)
    assert read(PolicyConfig, tomllib.loads(to_toml(config))) == plain


@pytest.mark.usefixtures("unchecked")
def test_settings_made_in_python_are_told_where_toml_could_not_hold_them() -> None:
    with pytest.raises(ConfigError, match=r"order is \{\}; expected a number, a string, true or"):
        Component("fixed", {"order": {}})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"unknown estimator 'Greedy' \(did you mean 'greedy'"):
        PolicyTraining(method="Greedy")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*-unet.toml")), ids=lambda p: p.stem)
def test_shipped_unet_configs_are_the_papers_recipe(path: Path) -> None:
    config = load(ReconstructorConfig, path)
    assert config.training == RECONSTRUCTOR_TRAININGS["paper-unet"]
    assert config.reconstructor == Component("unet", {"n_channels": 16, "n_pools": 4})


@pytest.mark.parametrize(
    ("name", "size", "start", "end"),
    [
        ("knee-base", 128, 16, 32),
        ("knee-long", 128, 4, 32),
        ("brain-base", 256, 32, 48),
        ("brain-long", 256, 8, 36),
    ],
)
def test_acquisition_presets_are_the_papers(name: str, size: int, start: int, end: int) -> None:
    setting = ACQUISITIONS[name]
    assert (setting.size, setting.n_initial, setting.budget) == (size, start, end)


def test_step_sizes_of_the_presets_are_the_papers() -> None:
    unet, ngreedy = RECONSTRUCTOR_TRAININGS["paper-unet"], NonGreedyTraining()
    assert (ngreedy.gamma, ngreedy.n_trajectories) == (1.0, 8)
    for training, rates in (
        (unet, {1: 1e-3, 40: 1e-3, 41: 1e-4, 50: 1e-4}),
        (GreedyTraining(), {1: 5e-5, 40: 5e-5, 41: 5e-6, 50: 5e-6}),
        (ngreedy, {10: 5e-5, 11: 2.5e-5, 21: 1.25e-5, 40: 5e-5 / 8, 41: 5e-5 / 16}),
    ):
        assert {e: learning_rate_at(training, e) for e in rates} == pytest.approx(rates)


def test_assignments_are_typed_and_may_be_bare_words() -> None:
    words = ["decay_epochs=[2, 3]", "protocol=blind", "learning_rate=1e-4"]
    found = settle(ReconstructorConfig(), None, [f"training.{word}" for word in words], {}).training
    assert (found.decay_epochs, found.protocol, found.learning_rate) == ((2, 3), "blind", 1e-4)


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("training.n_epoch=3", r"'training.n_epoch' \(did you mean 'n_epochs'\?\); choose one of"),
        ("trainin.n_epochs=3", "unknown setting 'trainin'"),
        ("training.seed.x=1", r"training.seed is {'x': 1}; expected a whole number"),
        ("training.batch_size=0", "batch_size is 0; it must be 1 or more"),
        ("training.accelerations=[4.0]", "1 accelerations with 6 center_fractions"),
    ],
)
def test_wrong_settings_are_told(assignment: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settle(ReconstructorConfig(), None, [assignment], {})


def test_a_budget_beyond_the_columns_is_told() -> None:
    with pytest.raises(ConfigError, match="exceeds the 20 columns; lower horizon to 11 or less"):
        AcquisitionSetting(n_initial=9, horizon=12, size=20)


def test_what_may_be_left_out_is_left_out_by_default() -> None:
    # A file cannot say that something is not given, so that reading it brings the default back.
    kinds = [x for x in vars(kscout.config).values() if isinstance(x, type) and is_dataclass(x)]
    optional = [
        (kind, one)
        for kind in kinds
        for one in fields(kind)
        if type(None) in get_args(get_type_hints(kind)[one.name])
    ]
    assert len(kinds) > 10 and len(optional) > 5
    assert [(kind, one.name) for kind, one in optional if one.default is not None] == []


@pytest.mark.parametrize("method", ESTIMATORS)
def test_the_method_picks_the_class_whose_defaults_are_the_preset(method: str) -> None:
    preset = training_of(method)
    config = read(PolicyConfig, {"training": {"method": method, "n_epochs": 3}})
    assert type(config.training) is type(preset) is not PolicyTraining
    assert to_table(config.training) == {**to_table(preset), "n_epochs": 3}
    assert read(PolicyConfig, tomllib.loads(to_toml(config))) == config


def test_settings_of_another_estimator_and_other_methods_are_unknown() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'training\.gamma'"):
        read(PolicyConfig, {"training": {"method": "greedy", "gamma": 1.0}})
    with pytest.raises(ConfigError, match=r"GreedyTraining has no method 'ngreedy'; .*NonGreedy"):
        GreedyTraining(method="ngreedy")
    for method in ("Greedy", 3):
        with pytest.raises(ConfigError, match=r"training\.method"):
            read(PolicyConfig, {"training": {"method": method}})


def test_runs_are_called_after_what_varies() -> None:
    assert GreedyTraining().label == "greedy"
    assert (NonGreedyTraining().label, NonGreedyTraining(gamma=0.9).label) == (
        "ngreedy-1",
        "ngreedy-0.9",
    )
