"""A policy's training is repeatable, survives a kill, and is the same in a process of its own."""

import math
import operator
from dataclasses import replace
from pathlib import Path
from typing import final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from training_stores import CONV, Train, small_config

from kscout.apps.cli.train import folders_of, vary
from kscout.config import Component, PolicyConfig, to_toml
from kscout.core import Observation, Policy
from kscout.data.store import Store
from kscout.errors import ConfigError, RunError, WeightsError
from kscout.policies import POLICIES, load
from kscout.reconstruction import save
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.runs import Progress
from kscout.training.algorithm import Learner
from kscout.training.algorithms.gradient import EpochDraws
from kscout.training.algorithms.greedy import Greedy
from kscout.training.policy import train_policies, train_policy
from kscout.weights import read_weights

TRAINING = {
    **{"n_epochs": 2, "batch_size": 4, "n_trajectories": 3, "learning_rate": 1e-2},
    **{"decay_epochs": [40], "decay_factor": 0.1, "keep_epochs": [1], "seed": 3},
}


def with_training(**changes: object) -> PolicyConfig:
    return small_config(CONV, {"method": "greedy", **TRAINING, **changes})


SMALL = with_training()


def test_a_network_below_zero_filled_images_is_warned_of(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "poor.safetensors", UNet(n_channels=2, n_pools=1))
    for network in ("zero-filled", tmp_path / "poor.safetensors"):
        assert "worse than zero-filled" not in caplog.text
        train_policy(SMALL, store, network, tmp_path / Path(network).stem, device="cpu")
    assert "the reconstruction is worse than zero-filled images: SSIM" in caplog.text


def test_run_folder_holds_kept_best_and_last_weights(train: Train) -> None:
    run = train(SMALL)
    assert [record["epoch"] for record in run.metrics] == [1, 2]
    assert {"train_ssim", "val_ssim", "learning_rate"} <= set(run.metrics[0])
    for name in ("weights", "best", "epoch-0001"):
        assert (run.path / f"{name}.safetensors").is_file()
    policy = load(run.path)
    seen = Observation(image=torch.rand(2, 12, 16), mask=torch.zeros(2, 16, dtype=torch.bool))
    assert policy(seen).shape == (2, 16)
    assert run.done is not None and run.done["best_epoch"] in (1, 2)


@pytest.mark.parametrize("changes", [{}, {"protocol": "paper"}, {"protocol": "blind"}])
def test_a_policy_trains_under_the_protocol_of_its_reconstruction(
    changes: dict[str, object], store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "unet.safetensors", UNet(n_channels=2, n_pools=1, protocol="paper"))
    config = with_training(n_epochs=1, **changes)
    where = (store, tmp_path / "unet.safetensors", tmp_path / "run")
    run, protocol = train_policy(config, *where, device="cpu"), changes.get("protocol", "paper")
    assert run.config["training"]["protocol"] == protocol
    assert read_weights(run.path / "weights.safetensors").extra["protocol"] == protocol
    notes = [one for one in caplog.messages if "trained for protocol paper and is used" in one]
    assert notes == [run.provenance.notes["protocol"]] if protocol == "blind" else not notes


def test_updates_tell_their_mean_and_epochs_a_picture(
    store: Store, tmp_path: Path, train: Train
) -> None:
    seen: list[Progress] = []
    pictures: list[Tensor] = []

    def see(progress: Progress) -> None:
        seen.append(progress)
        if progress.picture is not None:
            pictures.append(progress.picture())

    train(SMALL, "a", on_step=see)
    updates = [one for one in seen if one.epoch == 1 and not one.record]
    (record,) = [one for one in seen if one.epoch == 1 and one.record]
    n_slices, size = len(store.split("train")), SMALL.training.batch_size
    sizes = [min(size, n_slices - size * step) for step in range(len(updates))]
    means = [float(one.means["ssim"]) for one in updates]
    expected = pytest.approx(record.record["train_ssim"])
    assert sum(map(operator.mul, means, sizes)) / n_slices == expected
    picture, (n_rows, n_cols) = pictures[0], store.split("val").shape[1:]
    assert len(pictures) == 2 and picture.shape == (n_rows + 1, 3 * n_cols)
    setting = SMALL.acquisition
    assert picture[-1, :n_cols].sum() == setting.n_initial + setting.horizon
    train(SMALL, "b")
    weights = [(tmp_path / x / "weights.safetensors").read_bytes() for x in "ab"]
    assert weights[0] == weights[1], "a picture changes nothing"


def test_epochs_that_never_come_are_kept_of_no_new_run(train: Train, tmp_path: Path) -> None:
    asked = with_training(n_epochs=1, keep_epochs=[1, 99], protocol="blind")
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"names 99, and training\.n_epochs is 1;"):
        train(asked, out)
    assert not out.exists()
    paper = with_training(n_epochs=1, keep_epochs=type(asked.training).keep_epochs)
    train(paper, out)
    assert [path.name for path in out.glob("epoch-*")] == ["epoch-0001.safetensors"]
    # A run of before was not refused, and goes on.
    (out / "config.toml").write_text(to_toml(asked))
    train(asked, out)


def test_a_failure_in_a_process_is_the_error_of_the_command(store: Store, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no-network is neither a file nor a run folder"):
        train_policies([SMALL], store, "no-network", [tmp_path / "a"], device="cpu", n_at_once=2)


def test_a_single_policy_needs_no_folder_below_the_run() -> None:
    base = with_training(method="ngreedy")
    assert folders_of(vary(SMALL, [7], {"gamma": None})) == [""]
    assert folders_of(vary(base, [7], {"gamma": [0.5, 1.0]})) == ["gamma-0.5", "gamma-1.0"]
    both = folders_of(vary(base, [3, 4], {"gamma": [0.5, 1.0]}))
    assert both == ["gamma-0.5/seed-3", "gamma-0.5/seed-4", "gamma-1.0/seed-3", "gamma-1.0/seed-4"]
    with pytest.raises(ConfigError, match="names one value twice"):
        vary(base, [7], {"gamma": [1.0, 1.0]})


@final
class Broken(nn.Module):
    """Adds a number, and has a gradient that is none."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return x + (x - x).sqrt() + self.offset


@final
class Learned(Policy):
    """A user's policy: takes the sizes of the acquisition, and a layer between two others."""

    def __init__(self, *, n_cols: int, n_initial: int, horizon: int, layer: str = "ReLU") -> None:
        super().__init__()
        self.n_cols, self.n_initial, self.horizon, self.layer = n_cols, n_initial, horizon, layer
        between = {
            "ReLU": nn.ReLU(),
            "Dropout": nn.Dropout(0.1),
            "BatchNorm1d": nn.BatchNorm1d(n_cols),
            "Broken": Broken(math.nan),
            "BrokenBack": Broken(0.0),
            "GRU": nn.GRU(n_cols, n_cols, num_layers=2, dropout=0.1),
        }
        self.layers = nn.Sequential(
            nn.Linear(n_cols, n_cols), between[layer], nn.Dropout(0.0), nn.Linear(n_cols, n_cols)
        )

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return self.layers(seen.image.mean(dim=-2))


def test_a_policy_is_handed_the_sizes_that_it_takes_and_the_folder_may_be_a_string(
    store: Store, tmp_path: Path
) -> None:
    config = replace(SMALL, policy=Component(f"{__name__}:Learned"))
    run = train_policy(config, store, "zero-filled", str(tmp_path / "run"), device="cpu")
    policy = load(run.path)
    assert isinstance(policy, Learned)
    assert (policy.n_cols, policy.n_initial, policy.horizon) == (16, 2, 3)


def test_policies_without_weights_are_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        train(replace(SMALL, policy=Component("center-out")))


@pytest.mark.parametrize("layer", ["Dropout", "BatchNorm1d", "GRU"])
def test_a_policy_whose_scores_differ_between_passes_is_refused(
    train: Train, tmp_path: Path, layer: str
) -> None:
    config = replace(SMALL, policy=Component(f"{__name__}:Learned", {"layer": layer}))
    with pytest.raises(ConfigError, match=f"has a {layer} at 'layers.1', and gradients must"):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("layer", "error", "words"),
    [
        ("Broken", ConfigError, "the policy left no column to choose: its scores are NaN"),
        ("BrokenBack", RunError, "the weights of epoch 1 are not finite"),
    ],
)
def test_scores_and_gradients_that_are_not_finite_end_a_training(
    train: Train, layer: str, error: type[Exception], words: str
) -> None:
    network = Component(f"{__name__}:Learned", {"layer": layer})
    config = replace(with_training(batch_size=11), policy=network)
    with pytest.raises(error, match=words):
        train(config)


def test_draws_of_a_slice_do_not_depend_on_batch_size(store: Store) -> None:
    def draws(size: int) -> EpochDraws:
        config = with_training(batch_size=size)
        policy = POLICIES["conv"](n_cols=16, n_blocks=2)
        estimator = Greedy(Learner.of(policy, config), store.split("train"), ZeroFilled())
        return estimator.draws_of(2)

    small, large = draws(2), draws(5)
    assert torch.equal(small.order, large.order)
    assert torch.equal(small.per_slice["uniforms"], large.per_slice["uniforms"])


def test_a_setting_for_another_size_is_told(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    for size in (None, 16, 128):
        caplog.clear()
        setting = replace(SMALL.acquisition, size=size)
        train(replace(with_training(n_epochs=1), acquisition=setting), str(size))
        assert ("is meant for 128, and the images have 16" in caplog.text) == (size == 128)
