"""Policies: from what is seen to a score per column. A new one is a file and a line here."""

import inspect
from pathlib import Path
from typing import Any

import torch

from kscout.core import Policy
from kscout.errors import ConfigError, unknown_name
from kscout.policies.center_out import CenterOut
from kscout.policies.checkpoints import read_policy, save_policy
from kscout.policies.conv import ConvPolicy
from kscout.policies.equispaced import EquispacedOne, EquispacedTwo
from kscout.policies.fixed import FixedOrder, NaOracle
from kscout.policies.oracle import Oracle, SpectralOracle
from kscout.policies.random import Random
from kscout.policies.variable_density import VariableDensity
from kscout.zoo import zoo_path

POLICIES: dict[str, type[Policy]] = {
    "random": Random,
    "variable-density": VariableDensity,
    "equispaced-one": EquispacedOne,
    "equispaced-two": EquispacedTwo,
    "center-out": CenterOut,
    "fixed": FixedOrder,
    "na-oracle": NaOracle,
    "oracle": Oracle,
    "spectral-oracle": SpectralOracle,
    "conv": ConvPolicy,
}

_FITTED = {
    "fixed": "its order is chosen on training data by kscout.training.fixed_order",
    "na-oracle": "its order is chosen on the evaluated data by kscout.training.fixed_order",
    "conv": "it has weights to train with `kscout train policy`; give the run folder instead",
}
"""Policies that a name and sizes do not determine, and where they come from."""


def build(name: str, *, n_cols: int, n_initial: int, horizon: int) -> Policy:
    """Build a policy that needs no data, from its name and the sizes of the acquisition.

    Args:
        name: its name in `POLICIES`.
        n_cols: number of columns of the image.
        n_initial: central columns measured at the start.
        horizon: columns to acquire.
    """
    if name not in POLICIES:
        raise unknown_name("policy", name, list(POLICIES))
    if name in _FITTED:
        raise ConfigError(f"policy {name!r} cannot be built from its name: {_FITTED[name]}")
    sizes = {"n_cols": n_cols, "n_initial": n_initial, "horizon": horizon}
    wanted = inspect.signature(POLICIES[name]).parameters
    return POLICIES[name](**{key: value for key, value in sizes.items() if key in wanted})


def load(path: Path | str, *, device: torch.device | str = "cpu") -> Policy:
    """Load a policy, ready for use.

    Args:
        path: a run folder, a .safetensors file of kscout, a checkpoint of the paper's code, or a
            name of the zoo ("knee-base-greedy") where no file or folder is called so.
        device: where the policy shall live.
    """
    return read_policy(zoo_path(path) or Path(path), POLICIES).to(device).eval()


def save(path: Path | str, policy: Policy, *, extra: dict[str, Any] | None = None) -> None:
    """Write a policy to a .safetensors file that `load` reads.

    Args:
        path: the file, replaced whole.
        policy: of a class in `POLICIES`.
        extra: JSON values that say where it comes from.
    """
    save_policy(Path(path), policy, table=POLICIES, extra=extra)


__all__ = ["POLICIES", "build", "load", "save"]
