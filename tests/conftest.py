"""Shapes and types in signatures are checked while the tests run."""

import importlib.util
from collections.abc import Iterator

import jaxtyping
import pytest

if importlib.util.find_spec("beartype") is not None:
    from jaxtyping import install_import_hook

    install_import_hook("kscout", "beartype.beartype")

import torch

from golden_numbers import Golden
from kscout.names import table

torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden()


@pytest.fixture(autouse=True)
def named_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test trust a module that another one named."""
    monkeypatch.setattr(table, "_used", set())


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the checks of types off, as they are for users, whose mistakes must be told."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
