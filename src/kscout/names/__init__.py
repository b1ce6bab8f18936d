"""What exists, by name: tables that the command line, campaigns, reports and benchmarks read.

Nothing here imports torch. An entry says where a thing lies (`module:Name`) and the facts that
planning needs before it is imported. Three kinds of names are understood wherever one is taken:

| name | stands for |
|---|---|
| `random` | an entry of the table below |
| `my-policy` | an entry point that an installed package declares in the table's group |
| `my_module:MyClass` | a class of the user's own, importable from the working directory |

Code is imported only because a user named it, on the command line, in a settings file or in
Python. A weights file names its class too, but what a file says imports nothing new: `recall`
finds tables, entry points and modules that were named before (`use`, `--use`, `KSCOUT_USE`).
"""

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, final

from kscout.errors import ConfigError, unknown_name
from kscout.names.data import FORMATS, IMPORT_PRESETS, PLANES, SOURCES, Plane
from kscout.names.entries import (
    Entry,
    EstimatorEntry,
    FormatEntry,
    PolicyEntry,
    ReconstructorEntry,
    SourceEntry,
)

Protocol = Literal["paper", "blind"]
"""How normalized images are scored: `paper` un-normalizes with the target's statistics, which no
scanner has; `blind` with the statistics that the reconstruction itself found."""

PROTOCOLS: tuple[Protocol, ...] = ("paper", "blind")


def check_protocol(protocol: str) -> None:
    """Refuse a protocol that does not exist: every word but `paper` would act as `blind`."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, list(PROTOCOLS))


_OUTSIDE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


E = TypeVar("E", bound=Entry)


@final
class Table(Mapping[str, E], Generic[E]):
    """Things of one kind by name: those of kscout, of installed packages and of the user.

    Args:
        kind: what a message calls one of them.
        group: the entry point group in which packages declare theirs.
        base: `module:Class` that every class here derives from.
        make: builds the entry of a thing from outside, of which only the target is known.
        entries: those of kscout.
    """

    def __init__(
        self, kind: str, group: str, base: str, make: type[E], entries: Mapping[str, E]
    ) -> None:
        self.kind, self.group, self.base, self.make = kind, group, base, make
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> E:
        if name in self.entries:
            return self.entries[name]
        declared = _declared(self.group)
        if name in declared:
            return self.make(declared[name].value, f"from {_package_of(declared[name])}")
        if is_outside(name):
            return self.make(name, "from outside kscout")
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

    def recall(self, name: str, source: object) -> Any:  # noqa: ANN401 - a class of the table's kind
        """Return the class that a file names; a module that no user named is not imported.

        Args:
            name: what the file says.
            source: the file, for the message.
        """
        if not isinstance(name, str) or name not in self:
            raise ConfigError(
                f"{source} names the {self.kind} {name!r}, which this kscout does not have; it "
                f"has: {', '.join(sorted(self))}"
            )
        module = self[name].target.partition(":")[0]
        if is_outside(name) and module not in used():
            raise ConfigError(
                f"{source} was written by {name}, which is not part of kscout; if you trust that "
                f"code, name it: --use {module}, KSCOUT_USE={module}, or kscout.use({module!r})"
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
        base = import_target(self.base, of="base class")
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(
                f"{name} is no {self.kind}: it does not derive from "
                f"{self.base.replace(':', '.')}; name a class that does"
            )
        return found


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
    """Import `module:Name`; a user's module may lie in the working directory.

    Args:
        target: where it lies.
        of: what a message calls it.
    """
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


POLICIES = Table(
    "policy",
    "kscout.policies",
    "kscout.core:Policy",
    PolicyEntry,
    {
        "random": PolicyEntry("kscout.policies.random:Random", "uniform over unmeasured columns"),
        "variable-density": PolicyEntry(
            "kscout.policies.variable_density:VariableDensity", "random, denser near the center"
        ),
        "equispaced-one": PolicyEntry(
            "kscout.policies.equispaced:EquispacedOne", "equally spaced columns of one side"
        ),
        "equispaced-two": PolicyEntry(
            "kscout.policies.equispaced:EquispacedTwo", "equally spaced columns of both sides"
        ),
        "center-out": PolicyEntry(
            "kscout.policies.center_out:CenterOut", "the unmeasured column nearest to the center"
        ),
        "fixed": PolicyEntry(
            "kscout.policies.fixed:FixedOrder", "one order for all, chosen on training data", "fit"
        ),
        "na-oracle": PolicyEntry(
            "kscout.policies.fixed:NaOracle",
            "one order for all, chosen on the evaluated data",
            "fit",
            is_oracle=True,
        ),
        "oracle": PolicyEntry(
            "kscout.policies.oracle:Oracle", "the best next column by the truth", is_oracle=True
        ),
        "spectral-oracle": PolicyEntry(
            "kscout.policies.oracle:SpectralOracle",
            "the column of largest true k-space error",
            is_oracle=True,
        ),
        "conv": PolicyEntry(
            "kscout.policies.conv:ConvPolicy", "the paper's network", origin="training"
        ),
        "column": PolicyEntry(
            "kscout.policies.column:ColumnPolicy",
            "a network that sees k-space, one token per column",
            origin="training",
        ),
    },
)

RECONSTRUCTORS = Table(
    "reconstruction",
    "kscout.reconstructors",
    "kscout.core:Reconstructor",
    ReconstructorEntry,
    {
        "zero-filled": ReconstructorEntry(
            "kscout.reconstruction.zero_filled:ZeroFilled",
            "inverse transform of what was measured",
            is_learnable=False,
        ),
        "total-variation": ReconstructorEntry(
            "kscout.reconstruction.total_variation:TotalVariation",
            "compressed sensing with total variation",
            is_learnable=False,
        ),
        "unet": ReconstructorEntry("kscout.reconstruction.unet:UNet", "the paper's U-Net"),
        "fastmri-unet": ReconstructorEntry(
            "kscout.reconstruction.fastmri_unet:FastMRIUNet", "fastMRI's U-Net of today"
        ),
    },
)


def untrained_reconstructions() -> list[str]:
    """Return the reconstructions of kscout that a name alone determines."""
    return [name for name, entry in RECONSTRUCTORS.entries.items() if not entry.is_learnable]


ESTIMATORS = Table(
    "estimator",
    "kscout.estimators",
    "kscout.training.estimators:Estimator",
    EstimatorEntry,
    {
        "greedy": EstimatorEntry(
            "kscout.training.estimators.greedy:Greedy",
            "the paper's greedy estimator: the gain of the next column",
            settings="kscout.config.training:GreedyTraining",
            label="greedy",
        ),
        "ngreedy": EstimatorEntry(
            "kscout.training.estimators.non_greedy:NonGreedy",
            "the paper's non-greedy estimator: discounted gains to the end",
            settings="kscout.config.training:NonGreedyTraining",
            label="ngreedy-{gamma:g}",
            varies=("gamma",),
        ),
        "dense": EstimatorEntry(
            "kscout.training.estimators.dense:Dense",
            "regression on the gains of many columns tried at each state",
            settings="kscout.config.training:DenseTraining",
            label="dense",
        ),
    },
)


def label_of(method: str, settings: Mapping[str, Any]) -> str:
    """Return what tables call the runs of an estimator that has these settings.

    Args:
        method: its name; one that is not in the table is its own label.
        settings: by key; those that the label names may be left out.
    """
    entry = ESTIMATORS.entries.get(method)
    try:
        return entry.label.format(**settings) if entry else method
    except (KeyError, TypeError, ValueError):
        return method


ANALYSES = Table(
    "analysis",
    "kscout.analyses",
    "kscout.evaluation.analyses:Analysis",
    Entry,
    {
        name: Entry(f"kscout.evaluation.analyses.{target}", summary)
        for name, target, summary in (
            ("policy", "policy:Policy", "which columns are measured by which step"),
            ("entropy", "entropy:Entropy", "how much policies adapt to the image"),
            ("overlooked", "overlooked:Overlooked", "columns that policies hardly ever draw"),
            ("snr", "snr:Snr", "signal-to-noise ratio of gradients"),
            ("gammas", "gammas:Gammas", "final scores by discount"),
            ("curves", "curves:Curves", "learning curves"),
            ("cost", "cost:Cost", "what training cost"),
            ("examples", "examples:Examples", "reconstructions of chosen slices"),
            ("ranking", "ranking:Ranking", "how SSIM and PSNR order policies"),
        )
    },
)

__all__ = [
    "ANALYSES",
    "ESTIMATORS",
    "FORMATS",
    "IMPORT_PRESETS",
    "PLANES",
    "POLICIES",
    "PROTOCOLS",
    "RECONSTRUCTORS",
    "SOURCES",
    "Entry",
    "EstimatorEntry",
    "FormatEntry",
    "Plane",
    "PolicyEntry",
    "Protocol",
    "ReconstructorEntry",
    "SourceEntry",
    "Table",
    "check_protocol",
    "import_target",
    "is_outside",
    "label_of",
    "untrained_reconstructions",
    "use",
    "used",
]
