"""Trainings, fits and evaluations read slices from disk batch by batch, to the same bytes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_stores import blob_store

from coil_data import coil_store
from kscout.config import (
    AcquisitionSetting,
    Component,
    GreedyTraining,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
)
from kscout.core import Protocol
from kscout.data import contents
from kscout.data.store import Store
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting
from kscout.training.policy import train_policy
from kscout.training.reconstructor import train_reconstructor

UNET = ReconstructorConfig(
    Component("unet", {"n_channels": 2, "n_pools": 2}),
    ReconstructorTraining(n_epochs=2, batch_size=4, convolution="native"),
)
POLICY = PolicyConfig(
    Component("conv", {"n_channels": 2, "n_blocks": 2, "n_hidden": 8}),
    AcquisitionSetting(n_initial=4, horizon=2),
    GreedyTraining(n_epochs=1, batch_size=4, n_trajectories=3, convolution="native"),
)
EVALUATED = ("random", "fixed", "na-oracle", "oracle")


def results(store: Store, folder: Path) -> dict[str, Any]:
    protocol: Protocol = "blind" if store.kind.name == "kspace" else "paper"
    of_unet, of_policy = (
        replace(config, training=replace(config.training, protocol=protocol))
        for config in (UNET, POLICY)
    )
    unet = train_reconstructor(of_unet, store, folder / "unet", device="cpu")
    policy = train_policy(of_policy, store, unet.path, folder / "policy", device="cpu")
    setting = EvaluationSetting(
        n_initial=4, steps=2, trajectories=2, protocol=protocol, split="val", limit=4, device="cpu"
    )
    names = [*EVALUATED, str(policy.path)]
    evaluate(names, store, unet.path, setting, out=folder / "evaluation")
    weights = "weights.safetensors"
    return {
        "unet": (unet.path / weights).read_bytes(),
        "policy": (policy.path / weights).read_bytes(),
        "scores": (folder / "evaluation" / "results.csv").read_text(),
    }


@pytest.mark.slow
@pytest.mark.parametrize("write", [blob_store, coil_store])
def test_lazy_slices_give_the_same_bytes(
    write: Callable[[Path], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write(tmp_path / "store")
    resident = results(store, tmp_path / "resident")
    monkeypatch.setattr(contents, "RESIDENT_SHARE", 0)
    assert not store.split("train").contents.is_resident
    assert results(store, tmp_path / "lazy") == resident
