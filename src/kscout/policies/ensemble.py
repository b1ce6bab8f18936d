"""A linear ensemble: the weighted sum of the gains that several policies predict.

The errors of policies differ: a posterior sampler models the present slice, gain regression the
baseline gains of columns. With members' gains S_m the ensemble predicts G = sum_m w_m S_m + c. The
weights w and the constant c depend on the number of acquired columns, and
`kscout.training.algorithms.ensemble` fits them.

From few columns the largest immediate gain is a poor choice. With an `order` the first columns
are those of that order, the same for all slices; the sum decides all later ones.

A file contains its members, or names entries of the zoo, whose weights are read from their files
(`kscout.policies.load`).
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Context, Observation, Policy
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import POLICIES
from kscout.names.renamed import in_0_2, keys_in_0_2
from kscout.policies.column import ColumnPolicy
from kscout.policies.fixed import scores_of_order
from kscout.weights import constructor_arguments, retired_arguments

MOST_MEMBERS = 64


@final
@dataclass(frozen=True)
class ZooMember:
    """A member that is an entry of the zoo; files of an ensemble name it."""

    policy: Policy
    zoo: str
    """Name of the entry."""
    sha256: str
    """Digest of its file."""


@final
class EnsemblePolicy(Policy):
    """Scores columns by a weighted sum of the gains that its members predict.

    Args:
        members: two policies or more. As an attribute they are descriptions, as in files:
            `component`, `arguments` and `gain_units`, or `zoo` and `sha256` of an entry.
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
        members: Sequence[Policy | ZooMember] = (),
        horizon: int = 1,
        order: Sequence[int] = (),
        order_cols: int = 0,
    ) -> None:
        super().__init__()
        is_list = isinstance(members, list | tuple) and 2 <= len(members) <= MOST_MEMBERS
        if not is_list or not all(isinstance(one, Policy | ZooMember) for one in members):
            raise ConfigError(
                f"members are {members!r:.200}; give two policies or more, as in --set "
                '\'policy.members=["runs/posterior", "knee-general-16-column"]\''
            )
        policies = [one.policy if isinstance(one, ZooMember) else one for one in members]
        for policy in policies:
            check_can_be_member(type(policy))
        if horizon < 1:
            raise ConfigError(f"horizon is {horizon}; use 1 or more")
        self.horizon = horizon
        self.members = [_described(one) for one in members]
        # A string is a plain setting, which is part of the fingerprint; its name is, too.
        self.description = json.dumps([*map(_in_0_2, self.members)], sort_keys=True)
        self.policies, self._members = nn.ModuleList(policies), policies
        self.needs_gain_estimator = any(policy.needs_gain_estimator for policy in policies)
        self.weights = nn.Parameter(torch.zeros(horizon, len(policies)))
        self.constants = nn.Parameter(torch.zeros(horizon))
        with torch.no_grad():
            self.weights[:, 0] = 1.0
        self.begin_with(order, order_cols)

    @property
    def stored_elsewhere(self) -> tuple[str, ...]:
        """Prefixes of weights that files of entries contain."""
        return tuple(f"policies.{n}." for n, one in enumerate(self.members) if "zoo" in one)

    def begin_with(self, order: Sequence[int], order_cols: int) -> None:
        """Set the columns of the first steps; empty: the sum decides from the start."""
        self.order, self.order_cols = tuple(int(column) for column in order), order_cols
        known = {column for column in self.order if 0 <= column < order_cols}
        if len(known) < len(self.order):
            raise ConfigError(
                f"the order {list(self.order)} has duplicate columns, or columns that are not in a "
                f"matrix of {order_cols}; give each once, counted from 0"
            )
        sized = [policy for policy in self._members if not policy.serves_any_size]
        self.n_rows = _size_of(sized, "n_rows")
        self.n_cols = order_cols if self.order else _size_of(sized, "n_cols")
        self.serves_any_size = self.n_rows is None and self.n_cols is None
        # Scores of columns of the order are not gains.
        self.gain_units = () if self.order else (1.0,)

    def misfit(self, n_rows: int, n_cols: int) -> tuple[str, int] | None:
        if self.order and self.order_cols != n_cols:
            return f"{self.order_cols} columns", n_cols
        misfits = (policy.misfit(n_rows, n_cols) for policy in self._members)
        return next((one for one in misfits if one is not None), None)

    def bind(self, context: Context) -> "EnsemblePolicy":
        bound = copy.copy(self)
        bound._members = [policy.bind(context) for policy in self._members]
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
        for policy in self._members:
            shown = _as_trained(policy, seen)
            unit = policy.units_at(seen.mask, seen.for_each(seen.step))
            found.append(policy(shown).float() * unit[:, None])
        return torch.stack(found)


def check_can_be_member(kind: type[Policy]) -> None:
    """Raise an error for kinds of policies that an ensemble cannot contain."""
    if kind.needs_target or kind.needs_coils or issubclass(kind, EnsemblePolicy):
        raise ConfigError(
            f"{kind.__name__} cannot be a member of an ensemble: oracles see the ground "
            "truth, policies for coils need other images, and ensembles do not nest; give other "
            "policies"
        )


def _as_trained(policy: Policy, seen: Observation) -> Observation:
    """Return the observation with the columns measured after the policy's start as the step."""
    if not isinstance(policy, ColumnPolicy):
        return seen
    n_initial = round(policy.n_initial / (policy.n_cols / seen.mask.shape[1]))
    return replace(seen, step=(seen.mask.sum(dim=1) - n_initial).clamp(min=0))


def _size_of(policies: Sequence[Policy], name: str) -> int | None:
    return next((n for one in policies if (n := getattr(one, name, None)) is not None), None)


def _in_0_2(member: JsonObject) -> JsonObject:
    """Return a member under its name in version 0.2, on which fingerprints depend."""
    if "zoo" in member:
        return member
    name = member["component"]
    arguments = keys_in_0_2(name, member["arguments"])
    return {**member, "component": in_0_2("policy", name), "arguments": arguments}


def _described(member: Policy | ZooMember) -> JsonObject:
    if isinstance(member, ZooMember):
        return {"zoo": member.zoo, "sha256": member.sha256}
    return {
        "component": POLICIES.name_of(type(member)),
        "arguments": {**retired_arguments(member), **constructor_arguments(member)},
        "gain_units": list(member.gain_units),
    }
