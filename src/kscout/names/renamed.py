"""Names of version 0.2 that are called otherwise since 0.3.

Files that kscout wrote resolve an old name without a word (`current`). A user who types one is told
the new one (`check_current`).
"""

from collections.abc import Mapping
from typing import Any

from kscout.errors import ConfigError

RENAMED: dict[str, dict[str, str]] = {
    "policy": {},
    "reconstruction": {},
    "estimator": {},
    "sampler": {},
    "zoo entry": {
        "knee-base-imagine": "knee-base-posterior",
        "knee-base-weighed": "knee-base-ensemble",
        "knee-long-weighed": "knee-long-ensemble",
        "heads-base-imagine": "heads-base-posterior",
        "heads-base-weighed": "heads-base-ensemble",
        "heads-long-weighed": "heads-long-ensemble",
    },
    "setting": {},
    "option": {},
}
"""By kind: the old name and the new one. Settings are dotted: `training.key`, and for arguments
`component.key` with the component's new name in both. Options begin with two hyphens."""
CLASSES: dict[str, str] = {}
"""Classes of components, by the name of today: what version 0.2 called them. Fingerprints count
the class, and those in files of 0.2 must not change."""


def current(kind: str, name: str) -> str:
    """Return what a name in a file is called now."""
    return RENAMED.get(kind, {}).get(name, name)


def in_0_2(kind: str, name: str) -> str:
    """Return what version 0.2 called a name of today."""
    return next((old for old, new in RENAMED[kind].items() if new == name), name)


def check_current(kind: str, name: str) -> None:
    """Reject a name that a user typed and that is called otherwise now."""
    if current(kind, name) != name:
        raise ConfigError(
            f"the {kind} {name!r} is called {current(kind, name)!r} since version 0.3; use that "
            "name"
        )


def current_keys(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a section, or arguments of a component, under the names of today."""
    return {_key(current("setting", f"{where}.{key}")): value for key, value in table.items()}


def keys_in_0_2(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a section, or arguments of a component, under the names of 0.2."""
    return {_key(in_0_2("setting", f"{where}.{key}")): value for key, value in table.items()}


def _key(dotted: str) -> str:
    return dotted.rpartition(".")[2]
