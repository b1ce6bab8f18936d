"""What most tests of trainings share."""

import pytest
from training_stores import blob_store

from kscout.data.store import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("store") / "store", n_rows=12, n_cols=16)
