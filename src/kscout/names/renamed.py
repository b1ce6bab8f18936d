"""Names of version 0.2 that changed in 0.3.

Files that kscout wrote, and campaign files, may contain old names (`current`). For an old name on
the command line or in Python the error prints the new one (`check_current`).
"""

from collections.abc import Mapping
from typing import Any

from kscout.errors import ConfigError
from kscout.json_types import JsonObject

RENAMED: dict[str, dict[str, str]] = {
    "policy": {"imagine": "posterior", "weighed": "ensemble"},
    "reconstruction": {},
    "estimator": {"imagine": "posterior", "weigh": "ensemble"},
    "sampler": {},
    "analysis": {"overlooked": "unexplored"},
    "setting": {
        "training.n_memory": "training.buffer_size",
        "training.n_prior_slices": "training.n_baseline_slices",
        "joint.n_epochs": "joint.n_checkpoints",
        "unexplored.overlooked": "unexplored.unexplored",
        "ensemble.needs_judge": "ensemble.needs_gain_estimator",
        "ensemble.told": "ensemble.description",
    },
    "option": {"joint --epochs": "joint --checkpoints"},
}
"""New names by kind and old name. Settings are dotted: `training.key`; arguments of components and
columns of analyses are `name.key`, where `name` is the new name in both. Options start with two
hyphens, some after the name of their command."""
CLASSES: dict[str, str] = {"PosteriorPolicy": "ImaginePolicy", "EnsemblePolicy": "WeighedPolicy"}
"""Names of component classes in version 0.2 by current name. Fingerprints include the class name,
and fingerprints in files of 0.2 must not change."""


def current(kind: str, name: str) -> str:
    """Return the current name for a name in a file."""
    return RENAMED.get(kind, {}).get(name, name)


def in_0_2(kind: str, name: str) -> str:
    """Return the name in version 0.2."""
    return next((old for old, new in RENAMED[kind].items() if new == name), name)


def check_current(kind: str, name: str) -> None:
    """Reject an old name that a user typed."""
    if current(kind, name) != name:
        raise ConfigError(
            f"the {kind} {name!r} is called {current(kind, name)!r} since version 0.3; use that "
            "name"
        )


def current_keys(where: str, table: Mapping[str, Any]) -> JsonObject:
    """Return settings of a section or arguments of a component under their current names."""
    return {_key(current("setting", f"{where}.{key}")): value for key, value in table.items()}


def keys_in_0_2(where: str, table: Mapping[str, Any]) -> JsonObject:
    """Return settings of a section or arguments of a component under their names in 0.2."""
    return {_key(in_0_2("setting", f"{where}.{key}")): value for key, value in table.items()}


def _key(dotted: str) -> str:
    return dotted.rpartition(".")[2]
