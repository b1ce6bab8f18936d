"""From settings to live objects: a name and its arguments become a component."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from kscout.config import Component
from kscout.core import Policy, Reconstructor
from kscout.errors import ConfigError
from kscout.names import POLICIES, RECONSTRUCTORS, Table
from kscout.randomness import keyed_generator


def make_reconstructor(component: Component, *, seed: int = 0, **implied: object) -> Reconstructor:
    """Build a reconstructor by name; its initial weights depend on the seed alone.

    Args:
        component: name and arguments from the settings; the name may be `module:Class`.
        seed: keys the initial weights.
        implied: arguments that follow from elsewhere (the protocol); each is used where the
            constructor takes it, and must not contradict the component's own.
    """
    return _make("reconstructor", RECONSTRUCTORS, component, seed, implied)


def make_policy(component: Component, *, seed: int = 0, **implied: object) -> Policy:
    """Build a policy by name, e.g. with `n_cols` implied by the data."""
    return _make("policy", POLICIES, component, seed, implied)


@contextmanager
def seeded_globals(*key: int | str) -> Iterator[None]:
    """Key torch's global generators inside the block, and put them back after it.

    Only for draws that torch offers no generator for: initial weights, and dropout.
    """
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(keyed_generator(*key).initial_seed())
        yield


def _make(
    kind: str, table: Table[Any], component: Component, seed: int, implied: Mapping[str, object]
) -> Any:  # noqa: ANN401 - of the table's kind
    constructor = table.resolve(component.name)
    accepted = list(inspect.signature(constructor).parameters)
    for name in component.arguments:
        if name not in accepted:
            choices = ", ".join(accepted) or "none at all"
            raise ConfigError(f"{kind} {component.name!r} takes no {name!r}; it takes: {choices}")
    arguments = {name: value for name, value in implied.items() if name in accepted}
    for name, value in arguments.items():
        if component.arguments.get(name, value) != value:
            raise ConfigError(
                f"{kind}.{name} is {component.arguments[name]!r} but this run needs {value!r}; "
                f"leave it out of [{kind}]"
            )
    with seeded_globals(seed, "initial weights"):
        return constructor(**{**component.arguments, **arguments})
