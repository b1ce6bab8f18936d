"""Every estimator teaches a policy something: the loop around the estimators, not their arithmetic.

Weights of policies that have learned are no lesson of their own, and have their tests elsewhere.

Structured knees carry stripes whose frequency tells from the image; the column that holds them is
worth more than any other, so that a policy which learns soon leaves uniform draws behind.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from kscout.assemble import make_policy
from kscout.config import AcquisitionSetting, Component, PolicyConfig, settings_class, training_of
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.names import ESTIMATORS
from kscout.policies import save
from kscout.training.policy import train_policy

pytestmark = pytest.mark.slow

N_SLICES = {"train": 56, "val": 4, "test": 20}
N_ROWS, SIZE = 32, 64
BUDGET = AcquisitionSetting(n_initial=8, horizon=3)
NETWORK = Component("conv", {"n_channels": 4, "n_hidden": 32})
DRAWING = Component("posterior", {"n_channels": 8, "n_pools": 2, "n_draws": 4, "n_first": 4})
SMALL: dict[str, Any] = {
    **{"n_epochs": 2, "batch_size": 8, "n_trajectories": 4, "learning_rate": 2e-3},
    **{"decay_epochs": (), "keep_epochs": ()},
}
"""Settings of a training of seconds; an estimator takes those that it has."""
OWN: dict[str, dict[str, Any]] = {
    "dense": {
        **{"n_warm": 2, "average": 0.5, "n_best": 4, "n_random": 12, "n_baseline_slices": 32},
        "n_repeats": 0,
    },
    "alphazero": {
        **{"n_epochs": 2, "n_episodes": 16, "n_searches": 24, "n_updates": 40},
        **{"noise_share": 0.1, "exploration": 0.3},
    },
    "posterior": {
        **{"n_epochs": 6, "n_warm": 4, "learning_rate": 5e-3, "n_baseline_slices": 8},
        **{"n_validated": 1, "flips": False},
    },
    "ddqn": {"n_epochs": 2, "n_episodes": 40, "n_updates": 25, "batch_size": 12, "n_target": 25},
}
"""What else makes an estimator small."""
MARGIN = 0.03
"""In SSIM. Uniform draws score .36; a few updates add twice as much."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return one slice each of many knees, its middle rows."""
    path, number = tmp_path_factory.mktemp("structured") / "store", 0
    with StoreWriter(path, {"made by": "tests"}) as writer:
        for split, n_slices in N_SLICES.items():
            for _ in range(n_slices):
                keys = {"seed": 0, "volume": number, "n_slices": 1, "size": SIZE}
                images = draw_knee_volume(**keys, variant="structured").stored
                writer.append(split, f"knee-{number}", images[:, N_ROWS // 2 :][:, :N_ROWS])
                number += 1
        return writer.finish()


def final_ssim(policy: str | Path, store: Store) -> float:
    setting = EvaluationSetting(
        n_initial=BUDGET.n_initial,
        steps=BUDGET.horizon,
        trajectories=2,
        protocol="paper",
        device="cpu",
    )
    (found,) = evaluate([policy], store, "zero-filled", setting).found.policies
    return found.final["ssim"].mean


@pytest.fixture(scope="module")
def uniform_ssim(store: Store) -> float:
    return final_ssim("random", store)


@pytest.fixture(scope="module")
def start_ssim(store: Store, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What every training starts from: the network's first weights."""
    start = make_policy(
        NETWORK, seed=0, n_cols=SIZE, n_rows=N_ROWS, n_initial=8, horizon=BUDGET.horizon
    )
    path = tmp_path_factory.mktemp("start") / "start.safetensors"
    save(path, start, extra={})
    return final_ssim(path, store)


@pytest.mark.parametrize("method", [name for name in ESTIMATORS.entries if name != "ensemble"])
def test_training_beats_the_start_and_uniform_draws_on_unseen_slices(
    method: str, store: Store, start_ssim: float, uniform_ssim: float, tmp_path: Path
) -> None:
    names = {item.name for item in fields(settings_class(method))}
    small = {name: value for name, value in SMALL.items() if name in names}
    own = {**small, **OWN.get(method, {}), "protocol": "paper"}
    network = DRAWING if method == "posterior" else NETWORK
    config = PolicyConfig(network, BUDGET, replace(training_of(method), **own))
    train_policy(config, store, "zero-filled", tmp_path / method, device="cpu")
    learned = final_ssim(tmp_path / method, store)
    assert learned > start_ssim + MARGIN
    assert learned > uniform_ssim + MARGIN
