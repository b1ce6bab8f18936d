"""The file of a campaign as typed dataclasses; `grid` expands it.

Nothing in this folder imports torch: a campaign only plans, starts commands and reads files.
Settings of stores and analyses keep their written form, because names of runs depend on
it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, final

from kscout.config import RECONSTRUCTOR_TRAININGS
from kscout.config.bounds import REST, AtLeast, Chosen, Different, OneOf, Some, Words
from kscout.config.options import options_of
from kscout.config.records import check_arguments, to_table, unknown_key
from kscout.data.importing.settings import ImportSettings
from kscout.data.making import MakeSettings
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import (
    ESTIMATORS,
    IMPORT_PRESETS,
    POLICIES,
    SOURCES,
    Protocol,
    check_label,
    unknown_policy,
)
from kscout.zoo import zoo_names, zoo_path

Names = Annotated[tuple[str, ...], Different(), Words("a list of different names")]
Wholes = Annotated[
    tuple[int, ...], Some(most=10_000), Words("a list of whole numbers, at most 10000")
]
Count = Annotated[int, AtLeast(1)]

_VARIANTS = tuple(dict.fromkeys(one for entry in SOURCES.values() for one in entry.variants))
_COUNTS = "three whole numbers, as in [40, 10, 10]"
_NOT_WRITTEN = ("kind", "sources", "totals", "workers")
"""Settings of `data make` that a campaign has under other names, or does not have."""


@final
@dataclass(frozen=True)
class GivenStore:
    """An existing store."""

    path: str
    hint: str = "make it with `kscout data make` or `kscout data import`"
    """Advice if the store does not exist."""


@final
@dataclass(frozen=True)
class MadeStore:
    """A store made by `data make`."""

    make: Annotated[str, OneOf("kind of images", SOURCES)]
    variant: Annotated[str, OneOf("variant", _VARIANTS)] | None = None
    paper: bool | None = None
    source: str | list[str] | None = None
    volumes: Annotated[str | tuple[int, int, int] | None, Words(_COUNTS)] = None
    settings: Annotated[JsonObject, REST] = field(default_factory=dict)
    """Other settings, as they are written."""

    def __post_init__(self) -> None:
        _check_settings(MakeSettings, self.settings, without=_NOT_WRITTEN)
        _reject_both(self, "paper", "volumes", "slices")
        given = self.volumes
        if isinstance(given, str) and not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*){2}", given):
            raise ConfigError(f"volumes is {given!r}; expected {_COUNTS}")


@final
@dataclass(frozen=True)
class ImportedStore:
    """A store imported by `data import`."""

    import_: str
    preset: Annotated[str, OneOf("preset", IMPORT_PRESETS)] | None = None
    settings: Annotated[JsonObject, REST] = field(default_factory=dict)
    """Other settings, as they are written."""

    def __post_init__(self) -> None:
        _check_settings(ImportSettings, self.settings)
        _reject_both(self, "splits", "test_from_train", "held_out")


def _check_settings(kind: type, settings: JsonObject, without: Sequence[str] = ()) -> None:
    """Raise an error for settings that are not those of a command, or have other types."""
    options = {option.name: option for option in options_of(kind) if option.name not in without}
    values: JsonObject = {}
    for key, value in settings.items():
        if key not in options:
            raise unknown_key(key, list(options), "")
        parse = options[key].form.read
        is_text = parse is not None and isinstance(value, str | int | float)
        values[key] = parse(str(value), key) if parse and is_text else value
    check_arguments(kind, values, "")


Store = GivenStore | MadeStore | ImportedStore
_STORES: dict[str, type[Store]] = {"path": GivenStore, "make": MadeStore, "import": ImportedStore}


def _store_class(table: JsonObject) -> type[Store]:
    found = [how for how in _STORES if how in table]
    if len(found) != 1:
        raise ConfigError(
            f"has {' and '.join(found) or 'no source'}; give one of: path (a store), make "
            f"({', '.join(SOURCES)}), import (a folder)"
        )
    return _STORES[found[0]]


def _reject_both(store: MadeStore | ImportedStore, key: str, *others: str) -> None:
    """Raise an error for a setting next to one that determines it, as in the command."""
    given = {name: value for name, value in to_table(store).items() if value is not False}
    for other in others:
        if given.get(key) and other in given:
            raise ConfigError(f"sets {other}, which {key} determines; remove one of them")


@final
@dataclass(frozen=True)
class ReconstructionSection:
    """A reconstruction: a path, or settings of its training."""

    path: str | None = None
    """A run folder, a weights file or the name of a zoo entry."""
    preset: Annotated[str, OneOf("preset", RECONSTRUCTOR_TRAININGS)] = "unet"
    store: str | None = None
    """The store of its training; by default that of the grid."""
    reconstructor: JsonObject = field(default_factory=dict)
    training: JsonObject = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Horizon:
    """Start and length of acquisitions."""

    steps: Count
    n_initial: Annotated[int | None, AtLeast(1)] = None
    """Central columns measured at the start."""
    initial: str | None = None
    """Columns at the start instead, like "0,3,60-70"."""

    def __post_init__(self) -> None:
        if (self.n_initial is None) == (self.initial is None):
            raise ConfigError("a horizon takes either n_initial or initial; give one of them")


@final
@dataclass(frozen=True)
class EvaluationSection:
    """Comparison of policies; defaults are the paper's."""

    policies: tuple[str, ...] = ("random", "fixed", "na-oracle", "oracle")
    trajectories: Count = 8
    split: Literal["train", "val", "test"] = "test"
    reference: str | None = None
    seeds: Wholes | None = None
    """Seeds for sampling by untrained policies; by default those of the grid."""
    limit: Count | None = None
    fixed_slices: Count = 256
    argmax: bool = False
    columns_per_step: Annotated[int | None, AtLeast(1)] = None
    """Columns per reconstruction. (default: 1)"""

    def __post_init__(self) -> None:
        for policy in self.policies:
            label, equals, name = policy.rpartition("=")
            if equals and name in POLICIES:
                check_label(label, name)
            if name not in POLICIES and zoo_path(name) is None and not Path(name).exists():
                known = [*POLICIES, *zoo_names("policy"), "module:Class", "a run folder"]
                raise unknown_policy(policy, [*known, "LABEL=PATH"])


@final
@dataclass(frozen=True)
class Crossed:
    """The factors of the grid; stores, reconstructions and horizons: all by default."""

    stores: Names | None = None
    reconstructions: Names | None = None
    horizons: Names | None = None
    methods: tuple[Annotated[str, OneOf("method", ESTIMATORS)], ...] = ()
    seeds: Wholes = (0,)
    varied: Annotated[
        dict[str, Annotated[tuple[int | float, ...], Some(), Words("a list of numbers")]], REST
    ] = field(default_factory=dict)
    """Values of settings that vary between runs of an estimator: `gammas` for `gamma`."""


@final
@dataclass(frozen=True)
class File:
    """The content of a campaign file."""

    name: str = ""
    """Title of the page; by default the file's name."""
    use: tuple[str, ...] = ()
    """Modules of other packages whose classes the runs may load."""
    protocol: Protocol | None = None
    """Of trainings, evaluations and analyses; not given: `paper`, or `blind` for k-space."""
    grid: Crossed = Crossed()
    stores: dict[str, Annotated[Store, Chosen(_store_class)]] = field(default_factory=dict)
    reconstructions: dict[str, ReconstructionSection] = field(default_factory=dict)
    horizons: dict[str, Horizon] = field(default_factory=dict)
    policy: JsonObject = field(default_factory=dict)
    """The policy to train, with its arguments."""
    training: JsonObject = field(default_factory=dict)
    """Settings of all trainings; a section with the name of an estimator only applies to it."""
    evaluation: EvaluationSection | None = None
    analyses: dict[str, bool | JsonObject] = field(default_factory=dict)
    """Options by analysis; true: none."""
