"""Settings of version 0.2 that were removed in 0.3, and how files that name them are read.

At a value without effect a setting is dropped; any other value is rejected. An entry has no effect
on a class that still has the setting.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, final

from kscout.errors import ConfigError


@final
@dataclass(frozen=True)
class Retired:
    """A setting that was removed."""

    default: Any
    """Its value in version 0.2 where none was given."""
    methods: tuple[str, ...] = ()
    """Methods of `train policy` that had it: its default is part of the names of their runs in
    campaigns."""
    is_any_neutral: bool = False
    """Whether no value had an effect of its own, as of a detail of another retired setting."""
    reason: str = "because it did not improve results"


RETIRED: dict[str, Retired] = {
    "training.slopes": Retired(False, ("dense",)),
    "training.completion": Retired("none", ("dense", "imagine")),
    "training.n_trusted": Retired(128, ("imagine",), is_any_neutral=True),
    "training.from_order": Retired(True, ("dense",)),
    "training.label_every": Retired(1, ("dense",)),
    "training.turn": Retired(0.0, ("dense", "imagine")),
    "training.bend": Retired(0.0, ("dense", "imagine")),
    "training.fresh_pool": Retired(False),
    "training.keep_better": Retired(False),
    "training.through_images": Retired(True),
    "column.paired": Retired(False),
    "column.sees_mirrored": Retired(True),
    "imagine.order": Retired([]),
    "imagine.order_cols": Retired(0, is_any_neutral=True),
    "imagine.least": Retired([]),
    "analyses.ceiling": Retired(
        False, reason="because its estimates were below the policies that they should bound"
    ),
}
"""By section and key, for arguments of a component by its name and the argument."""


def is_dropped(name: str, value: object) -> bool:
    """Say whether a setting is a retired one without effect; reject one that had an effect.

    Args:
        name: dotted, of any depth, such as `training.slopes`.
        value: as a file or the command line gave it.
    """
    retired = RETIRED.get(".".join(name.split(".")[-2:]))
    if retired is None:
        return False
    plain = list(value) if isinstance(value, tuple) else value
    if retired.is_any_neutral or plain == retired.default:
        return True
    raise ConfigError(
        f"{name} is {value!r}; version 0.3 removed this setting {retired.reason}; leave it out, or "
        "use version 0.2"
    )


def supported(table: Mapping[str, Any], keys: Collection[str], where: str) -> dict[str, Any]:
    """Return a section without retired settings; what else is unknown stays.

    Args:
        table: keys and values.
        keys: those that exist.
        where: the section, or the name of the component whose arguments these are.
    """
    return {
        key: value
        for key, value in table.items()
        if key in keys or not is_dropped(f"{where}.{key}", value)
    }


def with_retired(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section `[training]` of `train policy` with all settings that it had in 0.2."""
    method = training.get("method")
    had = {
        key: default
        for key, default in defaults_of("training").items()
        if method in RETIRED[f"training.{key}"].methods
    }
    return {**had, **training}


def defaults_of(where: str) -> dict[str, Any]:
    """Return the defaults of all retired settings of a section, or arguments of a component."""
    dotted = {tuple(name.split(".")): retired for name, retired in RETIRED.items()}
    return {key: retired.default for (section, key), retired in dotted.items() if section == where}
