"""Joint training on complex k-space of coils: samplers choose, an unrolled network learns."""

from pathlib import Path

import pytest
from joint_runs import joint_config

from coil_data import coil_store
from kscout import policies, reconstruction
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.reconstruction.varnet import VarNet
from kscout.training.joint.train import train_joint

VARNET = {
    **{"name": "varnet", "n_cascades": 1, "n_channels": 2, "n_pools": 1},
    **{"sensitivity_channels": 2, "sensitivity_pools": 1},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return coil_store(tmp_path_factory.mktemp("coils") / "store", n_coils=3, noise=0.01)


@pytest.mark.parametrize("method", ["dense", "straight-through"])
def test_a_sampler_and_an_unrolled_network_learn_from_coils(
    method: str, store: Store, tmp_path: Path
) -> None:
    config = joint_config(method, model=VARNET, protocol="blind")
    run = train_joint(config, store, tmp_path / "run", device="cpu")
    assert isinstance(reconstruction.load(run.path), VarNet)
    assert run.metrics[-1]["n_sampler_updates"] > 0
    setting = EvaluationSetting(AcquisitionPlan(2, 3, n_trajectories=1, protocol="blind"))
    chosen = [("joint", policies.load(run.path / "weights-policy.safetensors")), "random"]
    found = evaluate(chosen, store, run.path, setting).found
    assert {one.policy for one in found.policies} == {"joint", "random"}


def test_the_units_of_a_target_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="protocol blind"):
        train_joint(joint_config("random", model=VARNET), store, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
