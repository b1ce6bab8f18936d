"""Build components from a name and arguments in settings."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from kscout.config import Component, check_arguments, check_bounded, supported
from kscout.core import Policy, Reconstructor
from kscout.device import check_memory
from kscout.errors import ConfigError, KScoutError
from kscout.names import POLICIES, RECONSTRUCTORS, Registry
from kscout.policies import load
from kscout.policies.ensemble import EnsemblePolicy
from kscout.randomness import keyed_generator
from kscout.weights import few_tensors


def make_reconstructor(component: Component, *, seed: int = 0, **implied: object) -> Reconstructor:
    """Build a reconstructor by name; its initial weights only depend on the seed.

    Each implied argument, from other settings such as the protocol, is passed if the constructor
    accepts it, and must not contradict those of the component.
    """
    return _make("reconstructor", RECONSTRUCTORS, component, seed, implied)


def make_policy(component: Component, *, seed: int = 0, **implied: object) -> Policy:
    """Build a policy by name, e.g. with `n_cols` implied by the data."""
    return _make("policy", POLICIES, component, seed, implied)


@contextmanager
def seeded_globals(*key: int | str) -> Iterator[None]:
    """Seed torch's global generators inside the block, and restore them afterwards.

    Only for random numbers without a generator argument in torch: initial weights, and dropout.
    """
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(keyed_generator(*key).initial_seed())
        yield


def _make(
    kind: str, table: Registry[Any], component: Component, seed: int, implied: Mapping[str, object]
) -> Any:  # noqa: ANN401 - of the table's kind
    constructor = table.resolve(component.name)
    accepted = list(inspect.signature(constructor).parameters)
    arguments = supported(component.arguments, accepted, component.name)
    component = Component(component.name, arguments)
    for name in component.arguments:
        if name not in accepted:
            choices = ", ".join(accepted) or "no arguments"
            raise ConfigError(f"{kind} {component.name!r} has no {name!r}; it accepts: {choices}")
    arguments = {name: value for name, value in implied.items() if name in accepted}
    for name, value in arguments.items():
        if component.arguments.get(name, value) != value:
            raise ConfigError(
                f"{kind}.{name} is {component.arguments[name]!r} but this run needs {value!r}; "
                f"leave it out of [{kind}]"
            )
    check_bounded(component.arguments, kind)
    check_arguments(constructor, component.arguments, kind)
    arguments = {**component.arguments, **arguments}
    _check_complete(constructor, arguments, f"{kind} {component.name!r}")
    if not component.arguments:
        return _built(constructor, arguments, seed)
    text = ", ".join(f"{name} = {value!r}" for name, value in component.arguments.items())
    try:
        members = arguments.get("members")
        if constructor is EnsemblePolicy and isinstance(members, list):
            loaded = [load(one) if isinstance(one, str) else one for one in members]
            arguments = {**arguments, "members": loaded}
        _check_size(constructor, arguments, text)
        return _built(constructor, arguments, seed)
    except KScoutError as error:
        raise ConfigError(f"{kind} {component.name!r}: {error}") from error
    except Exception as error:  # arguments may cause any exception in a constructor
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(
            f"{kind} {component.name!r} cannot be built with {text} ({reason}); change [{kind}]"
        ) from error


def _built(constructor: Callable[..., Any], arguments: Mapping[str, object], seed: int) -> Any:  # noqa: ANN401
    with seeded_globals(seed, "initial weights"):
        return constructor(**arguments)


def _check_complete(
    constructor: Callable[..., Any], arguments: Mapping[str, object], text: str
) -> None:
    """Raise an error if arguments are missing, such as an order that must be fitted first."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, one in inspect.signature(constructor).parameters.items():
        if one.kind in named and one.default is one.empty and name not in arguments:
            raise ConfigError(f"{text} cannot be built without {name!r}; give it, or name another")


def _check_size(
    constructor: Callable[..., Any], arguments: Mapping[str, object], text: str
) -> None:
    """Raise an error, before construction, for empty weights or a network too large to train."""
    n_bytes = 0

    def count(_: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal n_bytes
        if parameter is not None:
            if not parameter.numel():
                raise ValueError(f"it would have an empty {name!r}")
            # The weights, their gradients and the optimizer's state.
            n_bytes += 4 * parameter.numel() * parameter.element_size()
            check_memory(n_bytes, "cpu", f"training it with {text}", "make it smaller")

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"), few_tensors():
            constructor(**arguments)
    except (NotImplementedError, RuntimeError) as error:
        # Constructors that compute with tensors cannot run on the device meta.
        if "meta" not in str(error).lower():
            raise
    finally:
        hook.remove()
