"""Policies: from an observation to column scores. A new one is a file, and a line in `names`."""

import hashlib
import inspect
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kscout import names
from kscout.core import Policy
from kscout.errors import ConfigError, WeightsError
from kscout.files import as_path
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, SAMPLERS, unknown_policy
from kscout.names.renamed import current, current_keys
from kscout.pickles import read_checkpoint
from kscout.policies.ensemble import MOST_MEMBERS, ZooMember, check_can_be_member
from kscout.weights import (
    Weights,
    build_component,
    check_one_run,
    is_described,
    misfit,
    policy_file,
    read_weights,
    save_component,
)
from kscout.zoo import ZOO, zoo_file, zoo_names, zoo_path

_MEMBER_KEYS = {"component", "arguments", "gain_units"}
_ENTRY_KEYS = {"zoo", "sha256"}

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


def read_policy(path: Path) -> Policy:
    """Read a run folder, a .safetensors file of kscout or a reference .pt file."""
    given, path = path, policy_file(path)
    if not path.is_file():
        check_one_run(given)
        if str(given) in (*ESTIMATORS.entries, *SAMPLERS.entries):
            raise unknown_policy(str(given), ())
        raise WeightsError(_missing(given, path))
    weights = read_weights(path) if is_described(path) else _from_pickle(path)
    if weights.component == "ensemble":
        weights = _with_members(path, weights)
    policy: Policy = build_component(path, weights, "policy")
    policy.is_stochastic = bool(weights.extra.get("is_stochastic", policy.is_stochastic))
    policy.gain_units = checked_units(path, weights.extra.get("gain_units", policy.gain_units))
    if "labels" in weights.extra:
        policy.labels = str(weights.extra["labels"])
    return policy


def _with_members(path: Path, weights: Weights) -> Weights:
    given = weights.arguments.get("members")
    if not isinstance(given, list) or len(given) > MOST_MEMBERS:
        return weights  # The constructor raises the error.
    if any(isinstance(one, str) for one in given):
        raise WeightsError(
            f"{path} names other files as its members, but a file must contain them; fit the "
            "ensemble again with --method ensemble"
        )
    members, state = [], dict(weights.state)
    for number, one in enumerate(given):
        prefix = f"policies.{number}."
        own = {x.removeprefix(prefix): y for x, y in state.items() if x.startswith(prefix)}
        try:
            member = _member(path, one, own)
        except Exception as error:  # as in `build_component`
            raise misfit(path, weights.component, error) from error
        if isinstance(member, ZooMember):
            stored = member.policy.state_dict().items()
            state |= {f"{prefix}{name}": value for name, value in stored}
        members.append(member)
    return replace(weights, arguments={**weights.arguments, "members": members}, state=state)


def _member(path: Path, given: JsonObject, state: dict[str, Tensor]) -> Policy | ZooMember:
    if given.keys() == _ENTRY_KEYS:
        found = entry(given["zoo"])
        if found.sha256 != given["sha256"]:
            raise WeightsError(
                f"a member is {found.zoo} with the digest {given['sha256'][:12]}, and here it has "
                f"{found.sha256[:12]}; another version may have that digest"
            )
        return found
    if given.keys() != _MEMBER_KEYS:
        raise WeightsError(
            f"a member has the keys {sorted(given)}; expected {sorted(_MEMBER_KEYS)}"
        )
    name = current("policy", given["component"])
    check_can_be_member(names.POLICIES.recall(name, path))
    arguments = current_keys(name, given["arguments"])
    policy: Policy = build_component(path, Weights("policy", name, arguments, state), "policy")
    policy.gain_units = checked_units("a member", given["gain_units"])
    return policy


def entry(name: str) -> ZooMember:
    """Return a policy of the zoo as a member that files of an ensemble name."""
    if ZOO.get(name) != "policy":
        raise WeightsError(
            f"a member is {name!r}, which is no policy of this zoo; another version may contain it"
        )
    file = zoo_file(name)
    return ZooMember(read_policy(file), name, hashlib.sha256(file.read_bytes()).hexdigest())


def _missing(given: Path, file: Path) -> str:
    best = given / "best.safetensors"
    if best.is_file():
        return (
            f"the training in {given} has not ended; repeat its command, or give {best}, the "
            "best epoch so far"
        )
    return (
        f"{file} does not exist; give a finished run folder, a .safetensors file, a .pt "
        f"checkpoint, or a policy of the zoo: {', '.join(zoo_names('policy'))}"
    )


def checked_units(source: object, units: object) -> tuple[float, ...]:
    """Return units of gain; raise an error for values that are not finite numbers."""
    numbers: list[Any] = list(units) if isinstance(units, list | tuple) else [units]
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers):
        raise WeightsError(
            f"{source} contains units of gain that are not numbers ({str(units)[:40]}); copy it "
            "again, or save the policy again"
        )
    return tuple(float(one) for one in numbers)


def _from_pickle(path: Path) -> Weights:
    state = read_checkpoint(path)
    first, last = "channel_layer.layers.0.weight", "fc_out.4.weight"
    if first not in state or last not in state:
        raise WeightsError(
            f"{path} is not a policy of the paper's reference: it has no parameters {first!r} and "
            f"{last!r}; load reconstructions with kscout.reconstruction.load"
        )
    try:
        sizes = reference_sizes(state)
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
        raise WeightsError(
            f"{path} has parameters with shapes of no policy of the paper ({error}); "
            "copy or save it again"
        ) from error
    return Weights("policy", "conv", sizes, state, {"source": path.name})


def reference_sizes(state: dict[str, Tensor]) -> dict[str, int]:
    """Return the arguments of `ConvPolicy` that match the shapes of its parameters."""
    n_channels = state["channel_layer.layers.0.weight"].shape[0]
    n_blocks = sum(name.endswith("layers.0.weight") for name in state) - 1
    n_hidden, n_flat = state["fc_out.0.weight"].shape
    n_cols = state["fc_out.4.weight"].shape[0]
    # Parameters only determine the rows after all halvings; images are square if that is possible.
    n_coarse = n_flat // (n_channels * 2**n_blocks * max(1, n_cols >> n_blocks))
    n_rows = n_cols if n_cols >> n_blocks == n_coarse else n_coarse << n_blocks
    sizes = {"n_cols": n_cols, "n_rows": n_rows, "n_channels": n_channels}
    return {**sizes, "n_blocks": n_blocks, "n_hidden": n_hidden}


__all__ = ["POLICIES", "build", "load", "save"]
