"""A linear ensemble: the weighted sum of the gains that several policies predict.

The errors of policies differ: a posterior sampler models the present slice, gain regression the
baseline gains of columns. With members' gains S_m the ensemble predicts G = sum_m w_m S_m + c. The
weights w and the constant c depend on the number of acquired columns, and
`kscout.training.algorithms.ensemble` fits them.

From few columns the largest immediate gain is a poor choice. With an `order` the first columns
are those of that order, the same for all slices; the sum decides all later ones.

A file contains all members. Files of the zoo may name other entries as members, whose weights
are then read from those entries.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Context, Observation, Policy
from kscout.errors import ConfigError
from kscout.names import POLICIES
from kscout.names.renamed import current, current_keys, in_0_2, keys_in_0_2
from kscout.policies.checkpoints import checked_units, read_policy
from kscout.policies.column import ColumnPolicy
from kscout.policies.mean_gains import steps_since
from kscout.policies.ranking import scores_of_order
from kscout.weights import (
    constructor_arguments,
    retired_arguments,
    store_retired,
    supported_arguments,
)
from kscout.zoo import ZOO, zoo_file, zoo_path

_KEYS = {"component", "arguments", "gain_units"}
_ZOO_KEYS = {"zoo", "sha256"}


_MOST_MEMBERS = 64


@final
class EnsemblePolicy(Policy):
    """Scores columns by a weighted sum of the gains that its members predict.

    Args:
        members: two policies or more, each as in `kscout.policies.load`, or as described in a file
            of such a policy: `component`, `arguments` and `gain_units`; or `zoo` and `sha256`, the
            name of an entry and the digest of its file, whose weights are then not stored here.
        horizon: steps with separate weights; later steps use the last ones.
        order: columns of the first steps; empty: the sum decides from the start.
        order_cols: columns of the matrix of the order.
    """

    is_stochastic = False
    needs_measurement = True
    gain_units: Sequence[float] = (1.0,)

    def __init__(
        self,
        *,
        members: Sequence[str | Mapping[str, Any]] = (),
        horizon: int = 1,
        order: Sequence[int] = (),
        order_cols: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(members, list | tuple) or not 2 <= len(members) <= _MOST_MEMBERS:
            raise ConfigError(
                f"members are {members!r:.200}; give two policies or more, as in --set "
                '\'policy.members=["runs/posterior", "knee-base-column"]\''
            )
        if horizon < 1:
            raise ConfigError(f"horizon is {horizon}; use 1 or more")
        policies = [_member(one) for one in members]
        self.horizon = horizon
        self.members = [
            {**one, "zoo": current("zoo entry", one["zoo"])}
            if _is_entry(one)
            else _described(policy)
            for one, policy in zip(members, policies, strict=True)
        ]
        # A string is a plain setting, which is part of the fingerprint; its name is, too.
        self.told = json.dumps([*map(_in_0_2, self.members)], sort_keys=True)
        self.policies = nn.ModuleList(policies)
        self._bound = policies
        self.needs_gain_estimator = any(policy.needs_gain_estimator for policy in policies)
        self.weights = nn.Parameter(torch.zeros(horizon, len(policies)))
        self.constants = nn.Parameter(torch.zeros(horizon))
        with torch.no_grad():
            self.weights[:, 0] = 1.0
        self.begin_with(order, order_cols)
        self.register_state_dict_post_hook(_leave_out_entries)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_fill_in_entries)  # type: ignore[no-untyped-call]

    def begin_with(self, order: Sequence[int], order_cols: int) -> None:
        """Set the columns of the first steps; empty: the sum decides from the start."""
        self.order, self.order_cols = tuple(int(column) for column in order), order_cols
        known = {column for column in self.order if 0 <= column < order_cols}
        if len(known) < len(self.order):
            raise ConfigError(
                f"the order {list(self.order)} has duplicate columns, or columns that are not in a "
                f"matrix of {order_cols}; give each once, counted from 0"
            )
        bound = [policy for policy in self._policies() if not policy.serves_any_size]
        self.n_rows = _size_of(bound, "n_rows")
        self.n_cols = order_cols if self.order else _size_of(bound, "n_cols")
        self.serves_any_size = self.n_rows is None and self.n_cols is None
        # A column of the order has no gain that a stopping rule could use.
        self.gain_units = () if self.order else (1.0,)

    def misfit(self, n_rows: int, n_cols: int) -> tuple[str, int] | None:
        if self.order and self.order_cols != n_cols:
            return f"{self.order_cols} columns", n_cols
        misfits = (policy.misfit(n_rows, n_cols) for policy in self._policies())
        return next((one for one in misfits if one is not None), None)

    def bind(self, context: Context) -> "EnsemblePolicy":
        bound = copy.copy(self)
        bound._bound = [policy.bind(context) for policy in self._policies()]
        return bound

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        if not self.order:
            return self.weighted_sum(seen)
        order = torch.tensor(self.order, device=seen.mask.device)
        is_left = ~seen.mask[:, order].all(dim=1)
        is_first = is_left & (seen.for_each(seen.step) < len(self.order))
        # Members that try columns run only if they matter; others cost less than the test for it.
        if self.needs_gain_estimator and bool(is_first.all()):
            return self.along_order(seen)
        if self.needs_gain_estimator and not bool(is_first.any()):
            return self.weighted_sum(seen)
        return torch.where(is_first[:, None], self.along_order(seen), self.weighted_sum(seen))

    def along_order(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Score columns by the order, then missing ones from the center outwards."""
        scores = scores_of_order(seen.mask.shape[1], self.order)
        return scores.to(seen.mask.device).expand(seen.mask.shape)

    def weighted_sum(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Return the weighted sum of the gains that the members predict, plus the constant."""
        step = seen.for_each(seen.step).clamp(max=self.horizon - 1)
        weights = self.weights[step].T[:, :, None]
        return (weights * self.expected(seen)).sum(dim=0) + self.constants[step][:, None]

    def expected(self, seen: Observation) -> Float[Tensor, "member batch col"]:
        """Return the gains that each member predicts, or its scores if they have no unit."""
        found = []
        for policy in self._bound:
            shown = _as_trained(policy, seen)
            unit = policy.units_at(seen.mask, seen.for_each(seen.step))
            found.append(policy(shown).float() * unit[:, None])
        return torch.stack(found)

    def _policies(self) -> list[Policy]:
        return [policy for policy in self.policies if isinstance(policy, Policy)]


def _member(given: str | Mapping[str, Any]) -> Policy:
    if _is_entry(given):
        policy = _entry(given["zoo"], given["sha256"])
    elif isinstance(given, Mapping):
        if set(given) != _KEYS:
            raise ConfigError(f"a member has the keys {sorted(given)}; expected {sorted(_KEYS)}")
        name = current("policy", given["component"])
        kind = POLICIES.recall(name, "a member")
        _check_can_be_member(kind)
        arguments = current_keys(name, given["arguments"])
        policy = kind(**supported_arguments(kind, name, arguments))
        store_retired(policy, arguments)
        policy.gain_units = checked_units("a member", given["gain_units"])
    else:
        # On the device meta, for networks that are only examined, files cannot be read.
        with torch.device("cpu"):
            policy = read_policy(zoo_path(given) or Path(given))
    _check_can_be_member(type(policy))
    return policy


def _check_can_be_member(kind: type[Policy]) -> None:
    """Reject kinds of policies, before construction: an ensemble may name files as its members."""
    if kind.needs_target or kind.needs_coils or issubclass(kind, EnsemblePolicy):
        raise ConfigError(
            f"{kind.__name__} cannot be a member of an ensemble: oracles see the ground "
            "truth, policies for coils need other images, and ensembles do not nest; give other "
            "policies"
        )


def _is_entry(given: str | Mapping[str, Any]) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(given, Mapping) and set(given) == _ZOO_KEYS


def _of_entries(policy: EnsemblePolicy, prefix: str) -> tuple[str, ...]:
    """Return the prefixes of weights that are stored in the zoo."""
    return tuple(
        f"{prefix}policies.{number}." for number, one in enumerate(policy.members) if _is_entry(one)
    )


def _leave_out_entries(
    policy: EnsemblePolicy, state: dict[str, Tensor], prefix: str, _: object
) -> None:
    for name in [name for name in state if name.startswith(_of_entries(policy, prefix))]:
        del state[name]


def _fill_in_entries(
    policy: EnsemblePolicy, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    for number, one in enumerate(policy.members):
        own = policy.policies[number].state_dict() if _is_entry(one) else {}
        for name, value in own.items():
            state[f"{prefix}policies.{number}.{name}"] = value


def _entry(name: str, digest: str) -> Policy:
    """Return a policy of the zoo, with exactly the weights that the ensemble was fitted with."""
    name = current("zoo entry", name)
    if ZOO.get(name) != "policy":
        raise ConfigError(
            f"a member is {name!r}, which is no policy of this zoo; another version may contain it"
        )
    stored = entry(name)["sha256"]
    if stored != digest:
        raise ConfigError(
            f"a member is {name} with the digest {digest[:12]}, and here it has {stored[:12]}; "
            "another version may have that digest"
        )
    with torch.device("cpu"):
        return read_policy(zoo_file(name))


def entry(name: str) -> dict[str, str]:
    """Return the description of a zoo entry as a member, for files."""
    return {"zoo": name, "sha256": hashlib.sha256(zoo_file(name).read_bytes()).hexdigest()}


def _as_trained(policy: Policy, seen: Observation) -> Observation:
    """Return the observation with the step of the policy's start for its measured columns."""
    if not isinstance(policy, ColumnPolicy):
        return seen
    measured, n_cols = seen.mask.sum(dim=1), seen.mask.shape[1]
    step = steps_since(policy.tables, measured, seen.for_each(seen.step), n_cols)
    return replace(seen, step=step)


def _size_of(policies: Sequence[Policy], name: str) -> int | None:
    """Return the size of the first policy that has one; None without any."""
    return next((n for one in policies if (n := getattr(one, name, None)) is not None), None)


def _in_0_2(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member under its name in version 0.2, on which fingerprints depend."""
    if _is_entry(member):
        return {**member, "zoo": in_0_2("zoo entry", member["zoo"])}
    name = member["component"]
    arguments = keys_in_0_2(name, member["arguments"])
    return {**member, "component": in_0_2("policy", name), "arguments": arguments}


def _described(policy: Policy) -> dict[str, Any]:
    return {
        "component": POLICIES.name_of(type(policy)),
        "arguments": {**retired_arguments(policy), **constructor_arguments(policy)},
        "gain_units": list(policy.gain_units),
    }


__all__ = ["EnsemblePolicy", "entry"]
