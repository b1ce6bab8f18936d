"""Settings of version 0.2 that were removed later, and how files that name them are read.

At a value without effect a setting is dropped; any other value is rejected. An entry has no effect
on a class that still has the setting.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, SAMPLERS
from kscout.names.renamed import current, in_0_2


@final
@dataclass(frozen=True)
class Retired:
    """A setting that was removed."""

    default: Any
    """Its default in version 0.2."""
    methods: tuple[str, ...] = ()
    """Methods of `train policy` that had it, under their names of 0.2, and `reconstructor`: its
    default is part of the names of their runs in campaigns."""
    is_any_neutral: bool = False
    """Whether no value affects other results, e.g. for a detail of another retired setting."""
    reason: str = "because it did not improve results"
    version: str = "0.3"
    """The version that removed it."""
    kinds: tuple[str, ...] = ()
    """Kinds of runs that do not have it any more; empty for all."""


_SMALL = "because one network for several sizes, starts or budgets gained too little"
_UNUSED = "because nothing was trained with another value"
_UNREAD = "because no page of results needed it"
LISTED = ("known_cols", "known_starts")
"""Arguments that earlier versions stored as lists, which fingerprints do not include."""

RETIRED: dict[str, Retired] = {
    "training.slopes": Retired(False, ("dense",)),
    "training.completion": Retired("none", ("dense", "imagine")),
    "training.n_trusted": Retired(128, ("imagine",), is_any_neutral=True),
    "training.from_order": Retired(True, ("dense",)),
    "training.explore_best": Retired(0.23, ("dense",)),
    "training.explore_any": Retired(0.07, ("dense",)),
    "training.label_every": Retired(1, ("dense",)),
    "training.sizes": Retired([], ("dense", "reconstructor"), reason=_SMALL, version="0.4"),
    "training.starts": Retired([], ("dense", "imagine"), reason=_SMALL, version="0.4"),
    "training.horizons": Retired([], ("dense",), reason=_SMALL, version="0.4"),
    "training.zoom": Retired(1.0, ("dense", "imagine"), version="0.4"),
    "training.turn": Retired(0.0, ("dense", "imagine")),
    "training.bend": Retired(0.0, ("dense", "imagine")),
    "training.gain_weight": Retired(1.0, ("dense",), reason=_UNUSED, version="0.4"),
    "training.clip": Retired(1.0, ("dense", "imagine"), reason=_UNUSED, version="0.4"),
    "training.added_visits": Retired(1.0, ("alphazero",), reason=_UNUSED, version="0.4"),
    "training.unvisited": Retired("parent", ("alphazero",), reason=_UNUSED, version="0.4"),
    "training.scales_values": Retired(True, ("alphazero",), reason=_UNUSED, version="0.4"),
    "training.explore_first": Retired(1.0, ("ddqn",), reason=_UNUSED, version="0.4"),
    "training.scale": Retired(100.0, ("ddqn",), reason=_UNUSED, version="0.4"),
    "training.temperature": Retired(1.0, reason=_UNUSED, version="0.4"),
    "training.sampler_precision": Retired("auto", reason=_UNUSED, version="0.4"),
    "training.sampler_clip": Retired(1.0, reason=_UNUSED, version="0.4"),
    "training.sampler_average": Retired(0.995, reason=_UNUSED, version="0.4"),
    "training.n_batches_kept": Retired(8, reason=_UNUSED, version="0.4"),
    "training.split": Retired("train", ("weigh",), reason=_UNUSED, version="0.4"),
    "training.precision": Retired(
        "fp32", ("reconstructor",), reason=_UNUSED, version="0.4", kinds=("reconstructor", "joint")
    ),
    "training.fresh_pool": Retired(False),
    "training.keep_better": Retired(False),
    "training.through_images": Retired(True),
    "acquisition.columns_per_step": Retired(1, reason=_UNUSED, version="0.4"),
    "column.paired": Retired(False),
    "column.sees_mirrored": Retired(True),
    "column.known_cols": Retired([], reason=_SMALL, version="0.4"),
    "column.known_starts": Retired([], reason=_SMALL, version="0.4"),
    "imagine.order": Retired([]),
    "imagine.order_cols": Retired(0, is_any_neutral=True),
    "imagine.least": Retired([]),
    "varnet.sensitivities": Retired(
        "learned", reason="because no dataset was trained with it", version="0.4"
    ),
    "analyses.ceiling": Retired(
        False, reason="because its estimates were below the policies that they should bound"
    ),
    "analyses.cost": Retired(True, is_any_neutral=True, reason=_UNREAD, version="0.4"),
    "analyses.ranking": Retired(True, is_any_neutral=True, reason=_UNREAD, version="0.4"),
}
"""By section and key, for arguments of a component by its name in 0.2 and the argument."""


def is_dropped(name: str, value: object) -> bool:
    """Return whether a setting is retired and without effect; reject one that had an effect."""
    retired = _found(name)
    if retired is None:
        return False
    if _has_no_effect(retired, value):
        return True
    raise ConfigError(
        f"{name} is {value!r}; version {retired.version} removed this setting {retired.reason}; "
        "leave it out, or use an earlier version"
    )


def _found(name: str) -> Retired | None:
    *_, section, key = f".{name}".split(".")
    return RETIRED.get(f"{_component_in_0_2(section)}.{key}")


def _component_in_0_2(section: str) -> str:
    return in_0_2("policy", in_0_2("reconstruction", section))


def _has_no_effect(retired: Retired | None, value: object, kind: object = None) -> bool:
    """Return whether a value is that of a retired setting without effect, in runs of a kind."""
    if retired is None or (kind is not None and retired.kinds and kind not in retired.kinds):
        return False
    plain = list(value) if isinstance(value, tuple) else value
    return retired.is_any_neutral or plain == retired.default


def supported(table: Mapping[str, object], keys: Collection[str], where: str) -> JsonObject:
    """Return a section without retired settings; what else is unknown stays.

    `where` is the section, or the name of the component whose arguments these are.
    """
    return {
        key: value
        for key, value in table.items()
        if key in keys or not is_dropped(f"{where}.{key}", value)
    }


_NAMES = {
    "training": ("method", "estimator"),
    "policy": ("name", "policy"),
    "reconstructor": ("name", "reconstruction"),
}
"""Sections of a run's settings that name something: under which key, and what."""
_METHODS = (None, *ESTIMATORS.entries, *SAMPLERS.entries)
"""Methods whose settings may be retired: those of kscout."""
Rename = Callable[[str, str], str]


def of_today(table: Mapping[str, object]) -> JsonObject:
    """Return the settings of a run, whichever version wrote them, under the names of today.

    Retired settings without effect are left out.
    """
    found = _renamed(table, current)
    for title, section in found.items():
        if isinstance(section, dict) and section.get("method") in _METHODS:
            where = section.get("name", title)
            found[title] = {
                key: value
                for key, value in section.items()
                if not _has_no_effect(_found(f"{where}.{key}"), value, found.get("kind"))
            }
    return found


ADDED = {"flips": False}
"""Settings of the training of reconstructions that 0.2 did not have, and the values that leave a
training as it was."""


def of_0_2(table: Mapping[str, object]) -> JsonObject:
    """Return the settings of a run as version 0.2 had them, which campaigns name it after."""
    found = _renamed(table, in_0_2)
    training = found["training"]
    method = training.get("method")
    if found.get("kind") == "reconstructor":
        method = "reconstructor"
        training = {k: v for k, v in training.items() if k not in ADDED or v != ADDED[k]}
    had = {
        key: default
        for key, default in defaults_of("training").items()
        if method in RETIRED[f"training.{key}"].methods
    }
    return {**found, "training": {**had, **training}}


def _renamed(table: Mapping[str, object], rename: Rename) -> JsonObject:
    """Return the settings of a run with all names changed."""
    found, is_joint = dict(table), table.get("kind") == "joint"
    for title, (key, kind) in _NAMES.items():
        section = table.get(title)
        if isinstance(section, dict):
            kind = "sampler" if title == "training" and is_joint else kind
            name = section.get(key)
            where = title if title == "training" else current(kind, str(name))
            names: JsonObject = {} if name is None else {key: rename(kind, str(name))}
            for part in (where, "joint") if title == "training" and is_joint else (where,):
                section = {
                    rename("setting", f"{part}.{x}").rpartition(".")[2]: y
                    for x, y in section.items()
                }
            found[title] = section | names
    return found


def defaults_of(where: str) -> JsonObject:
    """Return the defaults of all retired settings of a section, or arguments of a component."""
    dotted = {tuple(name.split(".")): retired for name, retired in RETIRED.items()}
    section = _component_in_0_2(where)
    return {key: retired.default for (of, key), retired in dotted.items() if of == section}
