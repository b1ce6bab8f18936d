"""Joint training on complex k-space of coils: samplers choose, an unrolled network learns."""

from pathlib import Path

import pytest
import torch
from joint_runs import VARNET, check_sees_what_was_measured, joint_config

from coil_data import coil_store
from kscout import policies, reconstruction
from kscout.core import Measurement
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.reconstruction.varnet import VarNet
from kscout.runs import read_run
from kscout.training.joint.train import train_joint

METHODS = ("dense", "straight-through", "random")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return coil_store(tmp_path_factory.mktemp("coils") / "store", n_coils=3, noise=0.01)


@pytest.fixture(scope="module")
def trained(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, set]]:
    """Finished runs, and how many columns were measured wherever sensitivities were found."""
    root, found = tmp_path_factory.mktemp("runs"), {}
    calibrate = VarNet.calibrate
    with pytest.MonkeyPatch.context() as patch:
        for method in METHODS:
            counts: set[int] = set()

            def noting(model: VarNet, measured: Measurement, own: set = counts) -> torch.Tensor:
                own.update(measured.mask.sum(dim=-1).tolist())
                return calibrate(model, measured)

            patch.setattr(VarNet, "calibrate", noting)
            short = {"n_updates": 4, "n_checkpoints": 1, "keep_epochs": ()}
            config = joint_config(method, model=VARNET, protocol="blind", **short)
            train_joint(config, store, root / method, device="cpu")
            found[method] = root / method, counts
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_sampler_and_an_unrolled_network_learn_from_coils(
    method: str, store: Store, trained: dict[str, tuple[Path, set]]
) -> None:
    path, n_measured = trained[method]
    assert n_measured == {2}, "sensitivities are those of the start, as in an acquisition"
    assert isinstance(reconstruction.load(path), VarNet)
    assert (read_run(path).metrics[-1]["n_sampler_updates"] > 0) == (method != "random")
    setting = EvaluationSetting(n_initial=2, steps=3, trajectories=1, protocol="blind")
    chosen = [("joint", policies.load(path / "weights-policy.safetensors")), "random"]
    found = evaluate(chosen, store, path, setting).found
    assert {one.policy for one in found.policies} == {"joint", "random"}


def test_the_units_of_a_target_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="protocol blind"):
        config = joint_config("random", model=VARNET, protocol="paper")
        train_joint(config, store, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_was_not_measured_of_coils_changes_a_choice(
    method: str, store: Store, trained: dict[str, tuple[Path, set]]
) -> None:
    config = joint_config(method, model=VARNET, protocol="blind", horizon=4)
    batch = store.split("train").batch(torch.arange(3))
    check_sees_what_was_measured(trained[method][0], config, batch)
