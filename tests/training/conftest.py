"""What most tests of trainings share."""

from pathlib import Path
from typing import Any

import pytest
from training_stores import Train, blob_store

from kscout.config import PolicyConfig
from kscout.data.store import Store
from kscout.runs import RunRecord
from kscout.training.policy import train_policy


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("store") / "store", n_rows=12, n_cols=16)


@pytest.fixture
def train(store: Store, tmp_path: Path) -> Train:
    """Return what trains a policy on the store and zero-filled images, into a named folder."""

    def run(
        config: PolicyConfig, name: str | Path = "run", *, on: Store = store, **how: Any
    ) -> RunRecord:
        return train_policy(config, on, "zero-filled", tmp_path / name, **{"device": "cpu"} | how)

    return run
