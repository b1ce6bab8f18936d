"""Joint trainings that cannot be are refused in a sentence, before anything is written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joint_runs import joint_config
from typer.testing import CliRunner

from kscout import reconstruction
from kscout.apps.cli import app
from kscout.apps.cli.train import resolve_joint
from kscout.config import Component, JointConfig, of_today
from kscout.data.store import Store
from kscout.errors import ConfigError, KScoutError
from kscout.names import untrained_reconstructions
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.training.joint.train import train_joint
from kscout.zoo import zoo_names


def test_step_sizes_that_never_rise_are_warned_of(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_joint(joint_config("random", n_warm=100), store, tmp_path / "a", device="cpu")
    assert "n_warm = 100 updates, and there are 6: none exceeds 2e-05, where 0.001" in caplog.text
    caplog.clear()
    train_joint(joint_config("random"), store, tmp_path / "b", device="cpu")
    assert caplog.text == ""


def test_processes_of_torchrun_are_refused_before_anything_is_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="runs in one process, and torchrun started 2"):
        train_joint(joint_config("random"), store, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_an_estimator_for_frozen_networks_is_named_with_its_command() -> None:
    with pytest.raises(ConfigError, match="kscout train policy --method ddqn"):
        resolve_joint("knee-base", None, [], {"training.method": "ddqn"}, 128)


def test_a_network_is_trained_on_or_from_nothing(tmp_path: Path) -> None:
    words = ["train", "joint", "--data", "none", "--out", str(tmp_path / "run")]
    words += ["--method", "fixed", "--reconstructor", "heads8-varnet", "--model", "unet"]
    with pytest.raises(ConfigError, match="leave one of them out"):
        app(words, standalone_mode=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["file", "--set"])
def test_a_network_that_is_named_is_what_training_starts_from(
    how: str, store: Store, tmp_path: Path
) -> None:
    start, out, file = tmp_path / "start.safetensors", tmp_path / "run", tmp_path / "own.toml"
    reconstruction.save(start, FastMRIUNet(n_channels=2, n_pools=1))
    file.write_text("[reconstructor]\nname = 'unet'\n", encoding="utf-8")
    words = ["train", "joint", "--data", str(store.path), "--out", str(out), "--method", "random"]
    words += ["--reconstructor", str(start), "--n-initial", "2", "--steps", "2"]
    own = ["--config", str(file)] if how == "file" else ["--set", "reconstructor.name=unet"]
    with pytest.raises(ConfigError, match=r"is a fastmri-unet, and a unet was requested; leave"):
        app([*words, *own], standalone_mode=False)
    assert not out.exists()


@pytest.mark.parametrize(
    ("start", "complaint"),
    [
        ("none-such", "none-such is neither a file nor a run folder to start from; give one, or"),
        ("zero-filled", "zero-filled has nothing to train; start from a run folder"),
    ],
)
def test_only_what_can_be_trained_is_offered_to_start_from(
    start: str, complaint: str, store: Store, tmp_path: Path
) -> None:
    config = replace(joint_config("random"), reconstructor=None)
    with pytest.raises(ConfigError, match=complaint) as told:
        train_joint(config, store, tmp_path / "run", start=start, device="cpu")
    offered = str(told.value).removeprefix(start)
    assert all(name in offered for name in zoo_names("reconstructor"))
    assert not any(name in offered for name in untrained_reconstructions())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, None),
        ({"reconstructor.n_channels": 4}, Component("unet", {"n_channels": 4})),
        ({"reconstructor.name": "unet"}, Component("unet")),
        ({"reconstructor.name": "varnet"}, Component("varnet")),
    ],
)
def test_a_network_is_asked_for_where_something_is_said_of_it(
    flags: dict[str, Any], expected: Component | None
) -> None:
    config = resolve_joint("knee-base", None, [], {"training.method": "random", **flags}, 128)
    assert config.reconstructor == expected


def bad(method: str = "random", **changes: Any) -> JointConfig:
    return joint_config(method, **changes)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: bad(n_updates=2), "2 updates cannot be divided into 3 parts"),
        (lambda: bad(n_fit_slices=1), "n_fit_slices"),
        (lambda: bad(n_checkpoints=0), "n_checkpoints is 0"),
        (
            lambda: bad(keep_epochs=(2, 4, 99)),
            "keep_epochs names 4, 99, and training.n_epochs is 3; name epochs from 1 to 3",
        ),
        (lambda: bad(model={"name": "zero-filled"}), "nothing to train"),
        (lambda: replace(bad("loupe"), policy=bad("dense").policy), "a policy of its own"),
        (
            lambda: replace(bad("fixed"), policy=Component("fixed", {"order": [1]})),
            "sampler fixed has no settings, and .policy. has order",
        ),
        (
            lambda: replace(bad(), policy=Component("random", {"seed": 1})),
            "sampler random has no settings",
        ),
        (lambda: bad(horizon=15), "no column left to acquire"),
        (lambda: bad(batch_size=10**12), "needs .* GiB of memory"),
        (lambda: bad(n_pool=10**12), "needs .* GiB of memory"),
        (lambda: bad("dense", n_tried_at_random=10**12), "needs .* GiB of memory"),
        (lambda: bad("dense", n_repeats=10**12), "needs .* GiB of memory"),
        (lambda: bad("fixed", random_share=1.0), "fixed would never be asked: all 6 updates"),
        (
            lambda: bad("loupe", sampler_every=9),
            "loupe would never learn: .* every 9 of the last 4",
        ),
        (
            lambda: replace(bad("dense"), policy=bad("fixed").policy),
            "cannot be built without 'order'",
        ),
    ],
)
def test_what_cannot_be_trained_is_told_and_leaves_nothing(
    make: Any, complaint: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(KScoutError, match=complaint):
        train_joint(make(), store, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_updates_follow_from_the_data_unless_they_are_given() -> None:
    training = JointConfig.of("fixed").training
    found = [training.for_slices(n).n_updates for n in (40, 640, 7000)]
    assert found == [600, 1000, 6000] and training.n_checkpoints == training.n_epochs
    assert replace(training, n_updates=70).for_slices(40).n_updates == 70


def test_the_number_of_checkpoints_has_another_name_than_in_0_2() -> None:
    words = ["train", "joint", "--data", "d", "--out", "o", "--method", "fixed", "--epochs", "3"]
    with pytest.raises(ConfigError, match="'joint --epochs' is called 'joint --checkpoints'"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    table = {"kind": "joint", "training": {"method": "fixed", "n_epochs": 4, "n_prior_slices": 2}}
    assert of_today(table)["training"] == {
        **{"method": "fixed", "n_checkpoints": 4, "n_baseline_slices": 2}
    }
