"""A folder in which the tests of a run compile kernels, each once."""

import os
from collections.abc import Iterator

import emulated
import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def compile_in_one_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.getbasetemp()
    emulated.folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernels"


@pytest.fixture
def threads() -> Iterator[None]:
    """Give torch its number of threads back after a test that changed it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiler() -> None:
    if not emulated.can_compile():
        pytest.skip("no C++ compiler")
