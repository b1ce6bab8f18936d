"""Shapes and types in signatures are checked while the tests run."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("beartype") is not None:
    from jaxtyping import install_import_hook

    install_import_hook("kscout", "beartype.beartype")

import numpy as np
import torch

GOLDEN = Path(__file__).parent / "golden"

torch.set_num_threads(1)


class Golden:
    """Numbers computed with the authors' implementation, as tensors by file and key."""

    def __call__(self, file: str, key: str) -> torch.Tensor:
        with np.load(GOLDEN / f"{file}.npz") as arrays:
            return torch.from_numpy(arrays[key])

    def state(self, file: str, prefix: str) -> dict[str, torch.Tensor]:
        """Return the state dict stored under `prefix/`."""
        with np.load(GOLDEN / f"{file}.npz") as arrays:
            return {
                key.removeprefix(f"{prefix}/"): torch.from_numpy(arrays[key])
                for key in arrays.files
                if key.startswith(f"{prefix}/")
            }


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
