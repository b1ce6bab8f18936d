"""How names are looked up: in tables of kscout, in packages that add to them, in modules."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from kscout.errors import ConfigError, unknown_name
from kscout.names.entries import Entry
from kscout.names.renamed import check_current

_OUTSIDE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


E = TypeVar("E", bound=Entry)


@final
class Table(Mapping[str, E], Generic[E]):
    """Things of one kind by name: those of kscout, of installed packages and of the user.

    Args:
        kind: what a message calls one of them.
        group: the entry point group in which packages declare theirs.
        base: `module:Class` that every class here derives from; empty for functions.
        make: builds the entry of a thing from outside, of which only the target is known.
        room: package of kscout that targets of `entries` are relative to.
        entries: those of kscout.
        like: a function that is called as all functions here are.
    """

    def __init__(
        self,
        kind: str,
        *,
        group: str,
        base: str,
        make: type[E],
        room: str,
        entries: Mapping[str, E],
        like: Callable[..., object] | None = None,
    ) -> None:
        self.kind, self.group, self.base, self.make = kind, group, base, make
        self.like = like
        self.entries = {
            name: replace(entry, target=f"{room}.{entry.target}") for name, entry in entries.items()
        }

    def __getitem__(self, name: str) -> E:
        if name in self.entries:
            return self.entries[name]
        declared = _declared(self.group)
        if name in declared:
            return self.make(declared[name].value, f"from {_package_of(declared[name])}")
        if is_outside(name):
            return self.make(name, "from outside kscout")
        check_current(self.kind, name)
        raise unknown_name(self.kind, name, [*self, "module:Class"])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in self.entries or name in _declared(self.group) or is_outside(name)
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that are known: outside ones are known when they are given."""
        return iter([*self.entries, *(n for n in _declared(self.group) if n not in self.entries)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def words(self, *more: str) -> str:
        """Return the names of kscout's own for a help text, and what else may be given."""
        return ", ".join([*self.entries, "module:Class", *more])

    def resolve(self, name: str) -> Any:  # noqa: ANN401 - a class of the table's kind
        """Import and return the class that a user's name stands for."""
        target = self[name].target
        if is_outside(name):
            use(target.partition(":")[0])
        return self._checked(name, import_target(target, of=self.kind))

    def recall(self, name: object, source: object) -> Any:  # noqa: ANN401 - a class of the table's kind
        """Return the class that a file names; a module that no user named is not imported."""
        if not isinstance(name, str) or name not in self:
            raise ConfigError(
                f"{source} names the {self.kind} {name!r}, which this kscout does not have; it "
                f"has: {', '.join(sorted(self))}"
            )
        module = self[name].target.partition(":")[0]
        if is_outside(name) and module not in used():
            raise ConfigError(
                f"{source} names the {self.kind} {name}, which is not part of kscout; if you "
                f"trust that code, name it: --use {module}, KSCOUT_USE={module}, or "
                f"kscout.use({module!r})"
            )
        return self._checked(name, import_target(self[name].target, of=self.kind))

    def name_of(self, thing: type) -> str:
        """Return the name by which a class is found again: the table's, or `module:Class`."""
        target = f"{thing.__module__}:{thing.__qualname__}"
        known = {self[name].target: name for name in self}
        if target in known:
            return known[target]
        if not is_outside(target):
            raise ConfigError(
                f"{thing.__qualname__} is defined inside a function, so that no name finds it "
                "again; move it to the top of a module"
            )
        return target

    def _checked(self, name: str, found: Any) -> Any:  # noqa: ANN401 - what a user's name stands for
        if not self.base:
            if not callable(found):
                raise ConfigError(f"{name} is no {self.kind}: it cannot be called; name a function")
            if self.like is not None:
                _check_call(f"{name} is no {self.kind}", found, self.like)
            return found
        base = import_target(self.base, of="base class")
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(
                f"{name} is no {self.kind}: it does not derive from "
                f"{self.base.replace(':', '.')}; name a class that does"
            )
        return found


def _check_call(what: str, found: Callable[..., object], like: Callable[..., object]) -> None:
    """Refuse a function that cannot be called as another can."""
    wanted = inspect.signature(like).parameters.values()
    named = [x.name for x in wanted if x.kind is x.KEYWORD_ONLY]
    plain = [x.name for x in wanted if x.kind is not x.KEYWORD_ONLY]
    try:
        inspect.signature(found).bind(*plain, **dict.fromkeys(named))
    except ValueError:
        return  # Not every function of C tells its arguments.
    except TypeError as error:
        call = ", ".join([*plain, *(f"{x}={x}" for x in named)])
        raise ConfigError(
            f"{what}: it cannot be called as f({call}) ({error}); give it these arguments"
        ) from None


def is_outside(name: str) -> bool:
    """Say whether a name has the form `module:Class`."""
    return _OUTSIDE.fullmatch(name) is not None


_used: set[str] = set()


def use(module: str) -> None:
    """Trust a module of your own: files that its classes wrote may then be loaded.

    Args:
        module: as in `import module`; nothing is imported until a file names one of its classes.
    """
    if not _OUTSIDE.fullmatch(f"{module}:x"):
        raise ConfigError(f"{module!r} is no module; write it as in `import {module}`")
    _used.add(module)


def used() -> frozenset[str]:
    """Return the modules that were named in this process or by `KSCOUT_USE`.

    The user's own program or notebook, `__main__`, runs already and is always among them.
    """
    named = os.environ.get("KSCOUT_USE", "").split(",")
    return frozenset({"__main__", *_used, *(name.strip() for name in named if name.strip())})


def import_target(target: str, *, of: str) -> Any:  # noqa: ANN401 - whatever the target is
    """Import `module:Name`; a user's module may lie in the working directory."""
    module, _, path = target.partition(":")
    try:
        found = _import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigError(
            f"cannot import the {of} {target}: {error}; start in the folder that holds "
            f"{module.partition('.')[0]}, or install it"
        ) from error
    except AttributeError as error:
        raise ConfigError(f"{module} has no {path!r} ({of} {target}); see its spelling") from error
    return found


def _import_module(module: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != module.partition(".")[0] or {"", here} & set(sys.path):
            raise
        # Behind all installed packages, so that a file here shadows none of them.
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(module)


@cache
def _declared(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
