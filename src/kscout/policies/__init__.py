"""Policies: from an observation to column scores. A new one is a file, and a line in `names`."""

import inspect
from pathlib import Path

import torch

from kscout import names
from kscout.core import Policy
from kscout.errors import ConfigError
from kscout.files import as_path
from kscout.json_types import JsonObject
from kscout.policies.checkpoints import read_policy
from kscout.weights import save_component
from kscout.zoo import zoo_path

POLICIES: dict[str, type[Policy]] = {
    name: names.POLICIES.resolve(name) for name in names.POLICIES.entries
}
"""The policies of kscout by name; `kscout.names.POLICIES` also finds those of other packages."""

_ORIGINS = {
    "fit": "its order is fitted to data, as `kscout evaluate` does; give a fitted order, such as "
    "knee-base-fixed of the zoo, or call kscout.training.fit_fixed_order in Python",
    "training": "it has weights to train with `kscout train policy`; give the run folder instead",
}
"""Sources of policies that are not determined by a name and sizes."""


def build(name: str, *, n_cols: int, n_initial: int, horizon: int) -> Policy:
    """Build a policy that needs no data, from its name and the sizes of the acquisition.

    Args:
        name: a name in `POLICIES` or of an installed package, or `module:Class`.
        n_cols: number of columns of the image.
        n_initial: central columns measured at the start.
        horizon: columns to acquire.
    """
    origin = names.POLICIES[name].origin
    if origin != "name":
        raise ConfigError(f"policy {name!r} cannot be built from its name: {_ORIGINS[origin]}")
    constructor = names.POLICIES.resolve(name)
    sizes = {"n_cols": n_cols, "n_initial": n_initial, "horizon": horizon}
    wanted = inspect.signature(constructor).parameters
    return constructor(**{key: value for key, value in sizes.items() if key in wanted})


def load(path: Path | str, *, device: torch.device | str = "cpu") -> Policy:
    """Load a policy, ready for use.

    Args:
        path: a run folder, a .safetensors file of kscout, a checkpoint of the paper's code, or, if
            no such file or folder exists, the name of a zoo entry ("knee-base-greedy").
        device: device of the policy.
    """
    return read_policy(zoo_path(path) or as_path(path, "policy")).to(device).eval()


def save(path: Path | str, policy: Policy, *, extra: JsonObject | None = None) -> None:
    """Write a policy to a .safetensors file that `load` reads.

    Args:
        path: the file, replaced atomically.
        policy: of a class in `POLICIES`, or of your own class at the top level of a module.
        extra: JSON values that describe its origin.
    """
    # An estimator may have set `is_stochastic` and gain units on the instance, not on the class.
    kept = {
        "is_stochastic": policy.is_stochastic,
        "gain_units": list(policy.gain_units),
        "labels": policy.labels,
    }
    own = {
        name: value
        for name, value in kept.items()
        if getattr(policy, name) != getattr(type(policy), name)
    }
    save_component(Path(path), policy, kind="policy", extra={**(extra or {}), **own})


__all__ = ["POLICIES", "build", "load", "save"]
