"""Imports on first use: of the public names of a package, and of what a module computes with."""

import builtins
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def on_first_use(
    package: str, modules: Mapping[str, str], *there: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` and `__all__`.

    package: name of the package.
    modules: public names of each module, separated by blanks; its own name if it is public.
    there: public names that the package has without loading anything.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted([*places, *there])

    def get(name: str) -> Any:  # noqa: ANN401 - whatever the public name stands for
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(places[name])
        return module if places[name] == f"{package}.{name}" else getattr(module, name)

    return get, public.copy, public


_LOCK = threading.RLock()


@contextmanager
def lazily() -> Iterator[None]:
    """Postpone the imports of a `with` block at the top of a module to their first use.

    Commands list their options without loading torch, which takes two seconds. The block replaces
    `builtins.__import__`, as `etils.epy.lazy_imports` does, for the imports of this module alone.
    The names stand for classes, functions and modules, also in annotations, `isinstance` and
    `issubclass`. Reading an attribute of a name imports it, so annotations use imported classes.
    """
    importer = sys._getframe(2).f_globals

    def postponed(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:  # noqa: ANN401 - a module, or what stands for it
        if globals is not importer:  # Another thread imports at the same time.
            return real(name, globals, locals, fromlist or (), level)
        if not fromlist:
            return _stand_in(name)
        return SimpleNamespace(**{part: _stand_in(name, part) for part in fromlist})

    with _LOCK:
        real = builtins.__import__
        builtins.__import__ = postponed
        try:
            yield
        finally:
            builtins.__import__ = real


def _stand_in(module: str, name: str = "") -> type:
    return _Lazy(name or module, (), {"module": module, "name": name})


class _Lazy(type):
    """The type of classes that stand for an import, which happens on first use."""

    module: str
    name: str

    @property
    def _imported(cls) -> Any:  # noqa: ANN401 - a class, a function or a module
        module = import_module(cls.module)
        if cls.name and not hasattr(module, cls.name):
            return import_module(f"{cls.module}.{cls.name}")
        return getattr(module, cls.name) if cls.name else module

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of the import
        return cls._imported(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401 - of the import
        return getattr(cls._imported, name)

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, cls._imported)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls._imported)
