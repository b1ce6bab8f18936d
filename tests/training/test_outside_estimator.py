"""An estimator from a folder outside of the package trains, goes on, and is analyzed like ours."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from training_stores import train_whole_and_cut, weights

from command_line import kscout
from kscout.apps.cli.train import resolve_policy
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.reconstruction import save
from kscout.runs import read_run
from kscout.training import GradientEstimator
from kscout.training.policy import train_policies

OUTSIDE = Path(__file__).parents[1] / "outside"
METHOD = "reinforce:Reinforce"
WORDS = [
    *("--reconstructor", "zero-filled", "--method", METHOD, "--n-initial", "2", "--steps", "3"),
    *("--epochs", "3", "--batch-size", "4", "--trajectories", "3", "--device", "cpu"),
    *("--convolution", "native", "--set", "policy.n_channels=2", "--set", "policy.n_blocks=2"),
    *("--set", "policy.n_hidden=8", "--set", "training.keep_epochs=[1]"),
    *("--set", "training.learning_rate=0.01", "--json"),
]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OUTSIDE)
    monkeypatch.syspath_prepend(str(OUTSIDE))


def train(store: Store, out: Path, *more: str) -> dict[str, torch.Tensor]:
    kscout("train", "policy", "--data", store.path, "--out", out, *WORDS, *more)
    return weights(out) if not more else {}


@pytest.mark.slow
def test_it_trains_alone_as_with_other_seeds(store: Store, tmp_path: Path) -> None:
    alone = train(store, tmp_path / "alone")
    train(store, tmp_path / "both", "--seeds", "2")
    together = weights(tmp_path / "both" / "seed-0")
    assert all(torch.equal(alone[key], together[key]) for key in alone)
    config = read_run(tmp_path / "alone").config["training"]
    assert (config["method"], config["memory"]) == (METHOD, 0.9)


@pytest.mark.slow
def test_what_it_carries_survives_an_interruption(store: Store, tmp_path: Path) -> None:
    train(store, tmp_path / "run")
    config = resolve_policy("knee-base", tmp_path / "run" / "config.toml", [], {}, 128)
    train_whole_and_cut(config, store, tmp_path, epoch=3)


@pytest.mark.slow
def test_its_runs_are_evaluated_and_their_gradients_noise_measured(
    store: Store, tmp_path: Path
) -> None:
    train(store, tmp_path / "run")
    words = ("--data", store.path, "--reconstructor", "zero-filled", "--device", "cpu")
    kscout(
        *("evaluate", *words, "--split", "val", "--n-initial", "2", "--steps", "3"),
        *("--policy", tmp_path / "run", "--trajectories", "2", "--out", tmp_path / "results"),
    )
    summary = json.loads((tmp_path / "results" / "summary.json").read_text())
    assert summary["policies"][0]["training"]["method"] == METHOD
    kscout(
        *("analyze", "snr", tmp_path / "run", *words, "--trajectories", "3"),
        *("--batch-size", "4", "--passes", "2", "--out", tmp_path / "snr"),
    )
    assert (tmp_path / "snr" / "snr.csv").is_file()


@pytest.mark.slow
def test_processes_load_its_module_and_train_as_this_one_does(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "net.safetensors", import_module("unrolled").Unrolled())
    monkeypatch.setattr("kscout.names.table._used", {"unrolled"})
    settings = ["policy.n_channels=2", "policy.n_blocks=2", "training.n_trajectories=3"]
    flags = {"training.method": METHOD, "acquisition.n_initial": 2, "acquisition.horizon": 3}
    config = resolve_policy("knee-base", None, settings, flags, 16)
    short = replace(config.training, n_epochs=2, batch_size=4, keep_epochs=())
    configs = [replace(config, training=replace(short, seed=seed)) for seed in (0, 1)]
    names, epochs = (("a", "b"), ("c", "d")), []
    for outs, n_at_once in zip(names, (2, 1), strict=True):
        where = (store, tmp_path / "net.safetensors", [tmp_path / name for name in outs])
        train_policies(configs, *where, device="cpu", n_at_once=n_at_once, on_step=epochs.append)
        if n_at_once == 2:
            assert [x.epoch for x in epochs if x.record][-2:] == [1, 2]
    for own, single in zip(*names, strict=True):
        found, wanted = (weights(tmp_path / name) for name in (own, single))
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_its_settings_are_its_own() -> None:
    flags = {"training.method": METHOD}
    found = resolve_policy("knee-base", None, ["training.memory=0.5"], flags, 128)
    assert type(found.training).__name__ == "ReinforceTraining"
    assert found.training.label == "Reinforce"
    with pytest.raises(ConfigError, match="Reinforce has no gamma"):
        resolve_policy("knee-base", None, ["training.gamma=0.5"], flags, 128)
    with pytest.raises(ConfigError, match="no estimator"):
        settings = {"training.method": "reinforce:ReinforceTraining"}
        resolve_policy("knee-base", None, [], settings, 128)


def test_a_class_with_a_method_of_0_2_gets_an_error_that_names_the_new_one() -> None:
    with pytest.raises(ConfigError, match="Old defines gradients, which is update"):
        type("Old", (GradientEstimator,), {"gradients": lambda self, batch: None})
