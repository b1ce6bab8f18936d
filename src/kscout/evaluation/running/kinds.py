"""Checks that policies are policies and the reconstruction is one; loads no weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kscout.errors import ConfigError
from kscout.names import POLICIES, RECONSTRUCTORS, Registry
from kscout.weights import Kind, check_one_run, described, network_file, policy_file
from kscout.zoo import ZOO

_TABLES: dict[str, Registry[Any]] = {"policy": POLICIES, "reconstructor": RECONSTRUCTORS}


def check_kinds(policies: Sequence[object], reconstructor: object) -> None:
    """Raise an error for a policy as a reconstruction or the reverse, or a folder of several runs.

    Only names and paths are checked.
    """
    names = [policy for policy in policies if isinstance(policy, str | Path)]
    for source in (*map(_without_label, names), reconstructor):
        if isinstance(source, str | Path) and not any(source in x for x in _TABLES.values()):
            check_one_run(Path(source))
    others = [name for name in names if _kind_of(_without_label(name), "policy") == "reconstructor"]
    faults = [f"{others[0]} was given as a policy and is a reconstruction"] if others else []
    if isinstance(reconstructor, str | Path):
        if _kind_of(reconstructor, "reconstructor") == "policy":
            faults.append(f"--reconstructor {reconstructor} is a policy")
    if faults:
        raise ConfigError(
            f"{', and '.join(faults)}; give a policy, such as random or a trained one, as a "
            "policy, and a reconstruction, such as zero-filled or a trained one, as --reconstructor"
        )


def _without_label(source: str | Path) -> str | Path:
    """Return the name or path without its label, as in LABEL=PATH."""
    has_label = isinstance(source, str) and "=" in source and not Path(source).exists()
    return str(source).partition("=")[2] if has_label else source


def _kind_of(source: str | Path, expected: Kind) -> str | None:
    """Return the kind of a name, run folder or weights file; None if it must be loaded for that."""
    if isinstance(source, str) and source in _TABLES[expected]:
        return expected
    path = Path(source)
    if path.exists():
        file = policy_file(path) if expected == "policy" else network_file(path)
        description = described(file)
        return None if description is None else description.kind
    names = {name: kind for kind, table in _TABLES.items() for name in table} | ZOO
    return names.get(source) if isinstance(source, str) else None
