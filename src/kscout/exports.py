"""Public names of a package that load on first use, so that its import is fast."""

from collections.abc import Callable, Mapping
from importlib import import_module
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
