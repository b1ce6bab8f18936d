"""Numbers computed with the authors' implementation; `golden/README.md` says what they are."""

from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
GOLDEN = Path(__file__).parent / "golden"


class Golden:
    """Stored numbers as tensors, by file and key."""

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


def with_formula_weights(network: ModuleT, seed: int) -> ModuleT:
    """Give a network the weights that the authors' implementation had for golden numbers."""
    draws = np.random.RandomState(seed)
    for parameter in network.parameters():
        value = draws.standard_normal(parameter.shape)
        scale = np.prod(parameter.shape[1:]) ** -0.5 if parameter.ndim > 1 else 0.1
        parameter.data = torch.from_numpy(value * scale).float()
    return network


def assert_gradients(policy: nn.Module, method: str, golden: Golden, tolerance: float) -> None:
    """Compare the gradients of a policy's first and last layers with the authors'."""
    for name, key in (
        ("fc_out.4.weight", "grad_w"),
        ("fc_out.4.bias", "grad_b"),
        ("channel_layer.layers.0.weight", "grad_first"),
    ):
        found, expected = policy.get_parameter(name).grad, golden("loss", f"{method}/{key}")
        assert found is not None
        assert (found - expected).abs().max() <= tolerance * expected.abs().max(), name
