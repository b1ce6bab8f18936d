"""Checks of shapes that cost little: of signatures that name some, for a few calls in each test."""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import jaxtyping

N_CALLS = 4
"""Calls of a function that are checked in one test."""

_every_call = jaxtyping.jaxtyped
_test = object()


def install(modules: list[str]) -> None:
    """Check the first calls of functions in modules that are imported from now on."""
    jaxtyping.jaxtyped = first_calls
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def next_test() -> None:
    """Check the first calls of all functions again."""
    global _test
    _test = object()


def first_calls(found: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Return a function or class whose first calls in each test are checked.

    A checked call takes several times as long as a small function, and one that is called a
    thousand times shows its mistakes early. What names no shape is left to mypy.
    """
    if found is None:
        return functools.partial(first_calls, typechecker=typechecker)
    if inspect.isclass(found):
        if is_dataclass(found) and "__init__" in vars(found):
            found.__init__ = first_calls(found.__init__, typechecker=typechecker)
        return found
    if not any(map(_names_shape, inspect.get_annotations(found).values())):
        return found
    return _first_calls(found, typechecker)


def _first_calls(function: Callable[..., Any], typechecker: Callable[..., Any]) -> Any:
    checked: Callable[..., Any] | None = None
    test, n_left = _test, N_CALLS

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, test, n_left
        if test is not _test:
            test, n_left = _test, N_CALLS
        if not n_left or jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        # Not on top: a process that hands out tests, and loads no torch, imports this file.
        from torch.compiler import is_compiling

        if is_compiling():
            # Checks would be compiled into the graph, with the sizes of its first images.
            return function(*args, **kwargs)
        n_left -= 1
        if checked is None:
            checked = _every_call(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return called


def _names_shape(annotation: Any) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_names_shape, typing.get_args(annotation)))
