"""Initial values of trainings: the weights of another policy.

A policy may name arguments as `changeable`: a training from its weights may change them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kscout.config import Component, PolicyConfig
from kscout.core import Policy
from kscout.errors import ConfigError
from kscout.names import POLICIES
from kscout.policies.column import ColumnPolicy
from kscout.weights import constructor_arguments

_SIZES = ("n_rows", "n_cols", "n_initial", "horizon")
"""Arguments that follow from data and acquisition."""


def begin_from(policy: Policy, start: Policy) -> None:
    """Copy the weights of a trained policy, which `network_of` has checked, to a new one."""
    if isinstance(policy, ColumnPolicy):
        policy.take_weights(start)
    else:
        policy.load_state_dict(start.state_dict())


def is_resized(policy: Policy, start: Policy) -> bool:
    """Return whether a policy has other sizes than the trained policy of its initial weights."""
    own, other = (constructor_arguments(one) for one in (policy, start))
    return any(own.get(key) != other.get(key) for key in _SIZES)


def network_of(
    start: Policy, path: str | Path, config: PolicyConfig, sizes: Mapping[str, object]
) -> PolicyConfig:
    """Return settings with the network of a trained policy; another one is an error.

    Arguments that it names as `changeable` are those of the settings, or of the data.
    """
    name, wanted = POLICIES.name_of(type(start)), config.policy
    if name == "ensemble":
        raise ConfigError(
            f"{path} is an ensemble, whose weights are fitted without initial values; leave out "
            "--start, and give its members to --method ensemble as policy.members"
        )
    arguments = constructor_arguments(start)
    for key, value in sizes.items():
        known = arguments.get(key, value)
        # A network without a recorded size has none that could differ.
        if known != value and (known is None or key not in start.changeable):
            raise ConfigError(
                f"{path} was trained with {key} = {arguments[key]}, and this training has {value}; "
                "take its acquisition and images of its size, or leave out --start"
            )
    own = {x: y for x, y in arguments.items() if x not in sizes and y not in (None, [])}
    is_same, free = wanted.name == name, start.changeable
    asked = {x: y for x, y in wanted.arguments.items() if arguments.get(x) != y}
    others = {x: y for x, y in asked.items() if not is_same or x not in free}
    is_asked = wanted != PolicyConfig.of(config.training.method).policy
    if is_asked and is_same and others:
        there, settings = {x: arguments.get(x) for x in others}, (f"policy.{x}" for x in others)
        raise ConfigError(
            f"{path} is a {name} with {_told(there)}, and {_told(others)} was requested; leave out "
            f"{', '.join(settings)}, or --start"
        )
    if is_asked and not is_same:
        raise ConfigError(
            f"{path} is a {name} with {_told(own)}, and a {wanted.name} with "
            f"{_told(wanted.arguments)} was requested; leave out --policy and [policy], or --start"
        )
    changed = {x: y for x, y in asked.items() if x not in others}
    return replace(config, policy=Component(name, {**own, **changed}))


def _told(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in arguments.items()) or "no arguments"
