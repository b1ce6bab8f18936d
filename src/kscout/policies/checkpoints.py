"""Policies from files: our own, and the checkpoints of the paper's reference implementation."""

from pathlib import Path
from typing import Any

from torch import Tensor

from kscout.core import Policy
from kscout.errors import WeightsError, unknown_name
from kscout.policies.conv import ConvPolicy
from kscout.weights import (
    WEIGHTS_NAME,
    constructor_arguments,
    is_safetensors,
    read_pickle,
    read_weights,
    save_weights,
)
from kscout.zoo import zoo_names


def save_policy(
    path: Path, policy: Policy, *, table: dict[str, type[Policy]], extra: dict[str, Any] | None
) -> None:
    """Write a policy of the table so that `read_policy` rebuilds it."""
    names = [name for name, kind in table.items() if kind is type(policy)]
    if not names:
        raise WeightsError(
            f"{type(policy).__name__} is in no table, so its file could not be loaded; "
            "add it to kscout.policies.POLICIES first"
        )
    save_weights(
        path,
        policy.state_dict(),
        kind="policy",
        component=names[0],
        arguments=constructor_arguments(policy),
        extra=extra,
    )


def read_policy(path: Path, table: dict[str, type[Policy]]) -> Policy:
    """Read a run folder, a .safetensors file of ours or a reference .pt file.

    Args:
        path: the folder or file.
        table: policies by name.
    """
    if path.is_dir():
        path = path / WEIGHTS_NAME
    if not path.is_file():
        raise WeightsError(
            f"{path} does not exist; give a finished run folder, a .safetensors file, a .pt "
            f"checkpoint, or a policy of the zoo: {', '.join(zoo_names('policy'))}"
        )
    return _read_own(path, table) if is_safetensors(path) else _read_reference(path)


def _read_own(path: Path, table: dict[str, type[Policy]]) -> Policy:
    weights = read_weights(path)
    if weights.kind != "policy":
        raise WeightsError(
            f"{path} holds a {weights.kind} ({weights.component}), not a policy; "
            "load it with kscout.reconstruction.load"
        )
    if weights.component not in table:
        raise unknown_name("policy", weights.component, list(table))
    policy = table[weights.component](**weights.arguments)
    _fill(policy, weights.state, path)
    return policy


def _read_reference(path: Path) -> Policy:
    content = read_pickle(path)
    state = content.get("model", content.get("state_dict", content))
    first, last = "channel_layer.layers.0.weight", "fc_out.4.weight"
    if not isinstance(state, dict) or first not in state or last not in state:
        raise WeightsError(
            f"{path} is not a policy of the paper's reference: it has no parameters {first!r} and "
            f"{last!r}; load reconstructions with kscout.reconstruction.load"
        )
    policy = ConvPolicy(**reference_sizes(state))
    _fill(policy, state, path)
    return policy


def reference_sizes(state: dict[str, Tensor]) -> dict[str, int]:
    """Return the arguments of `ConvPolicy` that the shapes of its parameters tell."""
    n_channels = state["channel_layer.layers.0.weight"].shape[0]
    n_blocks = sum(name.endswith("layers.0.weight") for name in state) - 1
    n_hidden, n_flat = state["fc_out.0.weight"].shape
    n_cols = state["fc_out.4.weight"].shape[0]
    # The parameters tell the rows after all halvings only; images are square unless that says no.
    n_coarse = n_flat // (n_channels * 2**n_blocks * max(1, n_cols >> n_blocks))
    n_rows = n_cols if n_cols >> n_blocks == n_coarse else n_coarse << n_blocks
    sizes = {"n_cols": n_cols, "n_rows": n_rows, "n_channels": n_channels}
    return {**sizes, "n_blocks": n_blocks, "n_hidden": n_hidden}


def _fill(policy: Policy, state: dict[str, Tensor], path: Path) -> None:
    try:
        policy.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise WeightsError(
            f"{path} does not fit the policy that it names ({reason}); "
            "it was written by another version or is damaged"
        ) from error
