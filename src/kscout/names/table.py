"""Tables of components: facts that are available without importing them, and their lookup."""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, final

from kscout.errors import ConfigError, unknown_source
from kscout.names.renamed import check_current


@dataclass(frozen=True)
class Entry:
    """Location and summary of a component."""

    target: str
    """`module:Name` of the class or function."""
    summary: str = ""
    """One line for `--help` and the docs."""


@final
@dataclass(frozen=True)
class PolicyEntry(Entry):
    """A policy."""

    origin: Literal["name", "fit", "training"] = "name"
    """What it needs: nothing else (`name`), a fitted order, or trained weights."""
    is_oracle: bool = False
    """Whether it uses the ground truth, which no scanner has."""


@final
@dataclass(frozen=True)
class ReconstructorEntry(Entry):
    """A reconstruction."""

    is_learnable: bool = True
    """Whether it has weights, so that its name does not determine it."""
    is_for_coils: bool = False
    """Whether it only differs for several coils: comparisons on images omit it."""


@final
@dataclass(frozen=True)
class EstimatorEntry(Entry):
    """A method of policy training: a value of `training.method`."""

    settings: str = ""
    """`module:Class` of its settings, the section `[training]`; imports no torch. Empty for an
    estimator of another package, whose class defines them (`settings`)."""
    label: str = ""
    """Label of its runs, formatted with the settings in `varies`; by default its name."""
    policy: str = "conv"
    """Default network."""
    varies: tuple[str, ...] = ()
    """Additional settings in which runs of one command may differ, next to the seed."""


@final
@dataclass(frozen=True)
class SourceEntry(Entry):
    """A kind of images for `data make`."""

    size: int = 128
    """Default number of rows and columns."""
    variants: tuple[str, ...] = ("realistic",)
    """The first is the default."""
    paper_slices: tuple[int, int, int] | None = None
    """The paper's numbers of slices in training, validation and test, if it has these images."""
    paper_slices_per_volume: int = 16
    """Slices per volume with which the paper's numbers of volumes give its numbers of slices."""
    needs_sources: bool = False
    """Whether the images are cut from real volumes."""


@final
@dataclass(frozen=True)
class FormatEntry(Entry):
    """A file format for `data import`; the target reads one volume."""

    suffixes: tuple[str, ...] = ()
    """Suffixes of its files."""
    options: tuple[str, ...] = ()
    """Import options of the reader: `key`, `plane`, `axes`, `header`."""
    needs: str = ""
    """Package that the reader imports."""
    is_series: bool = False
    """Whether the files of one folder are one volume."""


_OUTSIDE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


E = TypeVar("E", bound=Entry)


@final
class Registry(Mapping[str, E], Generic[E]):
    """Components of one kind by name, from kscout, other packages and the user.

    Other packages declare theirs in the entry point `group`. Each class derives from `base`, a
    `module:Class`, or functions have the signature of `like`. Targets of `entries` are relative to
    the package `room`.
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
            point = declared[name]
            package = point.value if point.dist is None else point.dist.name
            return self.make(point.value, f"from {package}")
        if is_outside(name):
            return self.make(name, "from outside kscout")
        check_current(self.kind, name)
        raise unknown_source(self.kind, name, [*self, "module:Class"])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in self.entries or name in _declared(self.group) or is_outside(name)
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the known names; names of modules are only known when given."""
        return iter([*self.entries, *(n for n in _declared(self.group) if n not in self.entries)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def words(self, *more: str) -> str:
        """Return kscout's names for a help text, and other accepted forms."""
        return ", ".join([*self.entries, "module:Class", *more])

    def resolve(self, name: str) -> Any:  # noqa: ANN401 - a class of the table's kind
        """Import and return the class for a user's name."""
        target = self[name].target
        if is_outside(name):
            use(target.partition(":")[0])
        return self._checked(name, import_target(target, of=self.kind))

    def recall(self, name: object, source: object) -> Any:  # noqa: ANN401 - a class of the table's kind
        """Return the class that a file names, without importing modules that no user named."""
        if not isinstance(name, str) or name not in self:
            raise ConfigError(
                f"{source} names the {self.kind} {name!r}, which this kscout does not have; it "
                f"has: {', '.join(sorted(self))}"
            )
        module = self[name].target.partition(":")[0]
        if is_outside(name) and module not in used():
            raise ConfigError(
                f"{source} names the {self.kind} {name}, which is not part of kscout; if you "
                f"trust that code, name it: kscout --use {module} COMMAND, KSCOUT_USE={module}, or "
                f"kscout.use({module!r})"
            )
        return self._checked(name, import_target(self[name].target, of=self.kind))

    def name_of(self, thing: type) -> str:
        """Return the name of a class for later lookup: the table's, or `module:Class`."""
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

    def _checked(self, name: str, component: Any) -> Any:  # noqa: ANN401 - what a user's name stands for
        if not self.base:
            if not callable(component):
                raise ConfigError(f"{name} is no {self.kind}: it cannot be called; name a function")
            if self.like is not None:
                _check_call(f"{name} is no {self.kind}", component, self.like)
            return component
        base = import_target(self.base, of="base class")
        if not (isinstance(component, type) and issubclass(component, base)):
            raise ConfigError(
                f"{name} is no {self.kind}: it does not derive from "
                f"{self.base.replace(':', '.')}; name a class that does"
            )
        return component


def _check_call(what: str, component: Callable[..., object], like: Callable[..., object]) -> None:
    """Raise an error for a function whose signature does not accept the call of `like`."""
    wanted = inspect.signature(like).parameters.values()
    named = [x.name for x in wanted if x.kind is x.KEYWORD_ONLY]
    plain = [x.name for x in wanted if x.kind is not x.KEYWORD_ONLY]
    try:
        inspect.signature(component).bind(*plain, **dict.fromkeys(named))
    except ValueError:
        return  # Some functions in C have no signature.
    except TypeError as error:
        call = ", ".join([*plain, *(f"{x}={x}" for x in named)])
        raise ConfigError(
            f"{what}: it cannot be called as f({call}) ({error}); give it these arguments"
        ) from None


def is_outside(name: str) -> bool:
    """Return whether a name has the form `module:Class`."""
    return _OUTSIDE.fullmatch(name) is not None


_used: set[str] = set()


def use(module: str) -> None:
    """Trust a module of your own, so that files written by its classes can be loaded.

    It is named as in `import module`, and imported when a file names one of its classes.
    """
    if not _OUTSIDE.fullmatch(f"{module}:x"):
        raise ConfigError(f"{module!r} is no module; write it as in `import {module}`")
    _used.add(module)


def used() -> frozenset[str]:
    """Return the modules that were named in this process or by `KSCOUT_USE`.

    The user's own program or notebook, `__main__`, is always included.
    """
    named = os.environ.get("KSCOUT_USE", "").split(",")
    return frozenset({"__main__", *_used, *(name.strip() for name in named if name.strip())})


def import_target(target: str, *, of: str) -> Any:  # noqa: ANN401 - whatever the target is
    """Import `module:Name`; the module may be in the working directory."""
    module, _, path = target.partition(":")
    try:
        component = _import_module(module)
        for part in path.split("."):
            component = getattr(component, part)
    except ImportError as error:
        raise ConfigError(
            f"cannot import the {of} {target}: {error}; start in the folder that holds "
            f"{module.partition('.')[0]}, or install it"
        ) from error
    except AttributeError as error:
        raise ConfigError(f"{module} has no {path!r} ({of} {target}); see its spelling") from error
    return component


def _import_module(module: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != module.partition(".")[0] or {"", here} & set(sys.path):
            raise
        # After all installed packages, so that a file here shadows none of them.
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(module)


@cache
def _declared(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}
