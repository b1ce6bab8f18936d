"""Public names of a package that load on first use, so that importing it costs nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, modules: Mapping[str, str], *there: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's `__getattr__`, `__dir__` and `__all__`.

    Args:
        package: its name.
        modules: the public names of each, between blanks; its own name where it is public itself.
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
