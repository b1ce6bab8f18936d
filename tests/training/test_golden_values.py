"""Short seeded trainings and evaluations give the numbers that are stored here.

The tolerance allows for other CPUs; other draws change the values by more.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from joint_runs import joint_config
from posterior_policies import SAMPLER
from training_stores import COLUMN, CONV, small_config, weights

from kscout import policies
from kscout.data.store import Store
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction import save
from kscout.reconstruction.unet import UNet
from kscout.runs import RunRecord
from kscout.training.joint import sampler
from kscout.training.joint.train import train_joint
from kscout.training.policy import train_policy

SHORT = {"n_epochs": 2, "batch_size": 4, "seed": 3}
DENSE = {"n_best": 2, "n_random": 3, "n_baseline_slices": 4, "n_warm": 2}
TRAININGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": (CONV, {"n_trajectories": 3, "learning_rate": 1e-2}),
    "ngreedy": (CONV, {"n_trajectories": 3, "learning_rate": 1e-2, "gamma": 0.9}),
    "dense": (COLUMN, {**DENSE, "n_repeats": 2, "n_repeated": 5}),
    "posterior": (SAMPLER, {"n_warm": 2, "n_validated": 2, "n_baseline_slices": 4}),
    "alphazero": (
        {"name": "alphazero", "n_channels": 2, "n_hidden": 8},
        {"n_searches": 4, "n_episodes": 5, "n_updates": 3, "buffer_size": 20},
    ),
    "ddqn": (CONV, {"n_episodes": 5, "n_updates": 3, "buffer_size": 20, "n_target": 2}),
}
GOLDEN = {
    "greedy": (0.0584836, 124.54259),
    "ngreedy": (0.0583573, 124.83121),
    "dense": (0.0578663, 451.56338),
    "posterior": (0.0724681, 91.02211),
    "alphazero": (0.0564911, 81.33103),
    "ddqn": (0.0579054, 116.13124),
    "joint fixed": (0.0716539, 81.97901),
    "joint dense": (0.0699586, 81.99886),
}
"""Validation SSIM and sum of the magnitudes of all weights after the last epoch."""
EVALUATED = {
    "random": 0.0557399,
    "equispaced-one": 0.0551250,
    "oracle": 0.0598455,
    "order": 0.0549165,
}
"""Mean SSIM after the last column."""


@pytest.fixture(scope="module")
def unet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("unet") / "unet.safetensors"
    save(path, UNet(n_channels=2, n_pools=1, protocol="blind"))
    return path


def numbers(run: RunRecord) -> tuple[float, float]:
    tensors = [x for x in weights(run.path).values() if x.is_floating_point()]
    return run.metrics[-1]["val_ssim"], sum(x.double().abs().sum().item() for x in tensors)


@pytest.mark.parametrize("method", TRAININGS)
def test_a_short_training_gives_the_stored_values(
    method: str, store: Store, unet: Path, tmp_path: Path
) -> None:
    policy, training = TRAININGS[method]
    config = small_config(policy, {"method": method, **SHORT, **training})
    run = train_policy(config, store, unet, tmp_path / "run", device="cpu")
    assert numbers(run) == pytest.approx(GOLDEN[method], rel=1e-4)


@pytest.mark.parametrize("method", ["fixed", "dense"])
def test_a_short_joint_training_gives_the_stored_values(
    method: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The size of the replay buffer when the values were stored.
    monkeypatch.setattr(sampler, "_N_BATCHES_KEPT", 1)
    run = train_joint(joint_config(method), store, tmp_path / "run", device="cpu")
    assert numbers(run) == pytest.approx(GOLDEN[f"joint {method}"], rel=1e-4)


def test_an_evaluation_gives_the_stored_values(store: Store, unet: Path, tmp_path: Path) -> None:
    policies.save(tmp_path / "order.safetensors", FixedOrder(n_cols=16, order=[4, 10, 12, 3, 5]))
    names = ["random", "equispaced-one", "oracle", f"order={tmp_path / 'order.safetensors'}"]
    setting = EvaluationSetting(n_initial=2, steps=3, split="val")
    found = evaluate(names, store, unet, setting)
    last = {scores.policy: scores.metric("ssim")[:, -1].mean() for scores in found.scores}
    assert last == pytest.approx(EVALUATED, rel=1e-4)
