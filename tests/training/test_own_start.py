"""Training from columns of one's own: every estimator, its runs, and what is run on them later."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from joint_runs import joint_config
from torch import Tensor
from training_stores import Train, short_config

from coil_data import coil_store
from kscout.apps.cli.train import _start
from kscout.core import Measurement
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation.analyses.entropy import Entropy
from kscout.evaluation.running.prepare import open_policies
from kscout.names import ESTIMATORS
from kscout.reconstruction.zero_filled import WeightedZeroFilled
from kscout.training.joint.train import train_joint
from kscout.training.policy import train_policy
from kscout.weights import read_weights

OWN = {"initial": "0,8"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ESTIMATORS.entries)
def test_central_columns_as_a_list_train_the_same_weights(
    store: Store, tmp_path: Path, method: str, train: Train
) -> None:
    found = {}
    for name, start in (("usual", {}), ("listed", {"initial": "7-8"}), ("other", OWN)):
        run = train(short_config(method, {"n_initial": 2, **start}), name)
        found[name] = read_weights(run.path / "weights.safetensors")
    usual, listed, other = (found[name].state for name in ("usual", "listed", "other"))
    assert all(torch.equal(usual[key], listed[key]) for key in usual)
    assert any(not torch.equal(usual[key], other[key]) for key in usual)
    assert "initial" not in found["usual"].extra and found["other"].extra["initial"] == "0,8"
    entropy = Entropy(data=store.path, reconstructor="zero-filled", split="val", device="cpu")
    ready = open_policies([str(tmp_path / "other")], entropy)
    assert (ready.plan.start, ready.plan.horizon, ready.notes) == ((0, 8), 2, [])
    central = open_policies([str(tmp_path / "other")], replace(entropy, n_initial=2))
    assert central.plan.start == 2
    (note,) = central.notes
    assert "for 2 (0,8) + 2 columns under protocol blind and runs here with 2 + 2 under" in note


def test_both_files_of_a_joint_training_tell_its_start(store: Store, tmp_path: Path) -> None:
    usual = joint_config("random")
    own = replace(usual, acquisition=replace(usual.acquisition, initial="0,8"))
    for config, expected in ((usual, None), (own, "0,8")):
        run = train_joint(config, store, tmp_path / f"{expected}", device="cpu")
        for name in ("weights", "weights-policy"):
            extra = read_weights(run.path / f"{name}.safetensors").extra
            assert extra.get("initial") == expected, name


def test_a_start_must_fit_its_number_and_the_images(train: Train) -> None:
    with pytest.raises(ConfigError, match="names 3 columns and n_initial is 2; set n_initial = 3"):
        short_config("greedy", {"n_initial": 2, "initial": "0-2"})
    with pytest.raises(ConfigError, match="column 16 of the start is not one of the 16"):
        train(short_config("greedy", {"n_initial": 2, "initial": "0,16"}))


def test_the_command_takes_a_list(store: Store) -> None:
    wanted = {"acquisition.n_initial": 3, "acquisition.initial": "0,7-8"}
    assert _start("8,0,7", None, store.path) == wanted
    with pytest.raises(ConfigError, match="either --n-initial or --initial"):
        _start("0", 5, store.path)
    with pytest.raises(ConfigError, match="column 16 of the start is not one of the 16"):
        _start("0,16", None, store.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [x for x in ESTIMATORS.entries if x != "posterior"]
)  # Real images.
def test_coils_keep_the_sensitivities_of_the_start(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_measured: set[int] = set()
    calibrate = WeightedZeroFilled.calibrate

    def watched(self: WeightedZeroFilled, measured: Measurement) -> Tensor:
        n_measured.update(measured.mask.sum(dim=-1).tolist())
        return calibrate(self, measured)

    monkeypatch.setattr(WeightedZeroFilled, "calibrate", watched)
    config = short_config(method, {"n_initial": 8}, n_cols=20, protocol="blind")
    store = coil_store(tmp_path / "coils", n_coils=2)
    train_policy(config, store, "zero-filled-weighted", tmp_path / "run", device="cpu")
    assert n_measured == {8}
