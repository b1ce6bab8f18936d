"""Whether what was given as a policy is one, and what as a reconstruction; loads no weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kscout.errors import ConfigError
from kscout.names import POLICIES, RECONSTRUCTORS, Table
from kscout.weights import Kind, check_one_run, described, network_file, policy_file
from kscout.zoo import ZOO

_TABLES: dict[str, Table[Any]] = {"policy": POLICIES, "reconstructor": RECONSTRUCTORS}


def check_kinds(wanted: Sequence[object], reconstructor: object) -> None:
    """Refuse a policy where a reconstruction is asked for, and the other way around.

    A folder of several runs is refused, too.

    Args:
        wanted: the policies; objects that are neither names nor paths are taken as they are.
        reconstructor: likewise.
    """
    given = [one for one in wanted if isinstance(one, str | Path)]
    for one in (*map(_of_label, given), reconstructor):
        if isinstance(one, str | Path) and not any(one in table for table in _TABLES.values()):
            check_one_run(Path(one))
    others = [one for one in given if _kind_of(_of_label(one), "policy") == "reconstructor"]
    is_policy = (
        isinstance(reconstructor, str | Path)
        and _kind_of(reconstructor, "reconstructor") == "policy"
    )
    if others and is_policy:
        raise ConfigError(
            f"--reconstructor {reconstructor} is a policy, and {others[0]} was given as a policy "
            "and is a reconstruction; exchange the two"
        )
    if is_policy:
        raise ConfigError(
            f"--reconstructor {reconstructor} is a policy; give it as one, and a reconstruction "
            "such as zero-filled or a trained one here"
        )
    if others:
        raise ConfigError(
            f"{others[0]} was given as a policy and is a reconstruction; give it as "
            "--reconstructor, and a policy such as random or a trained one here"
        )


def _of_label(wanted: str | Path) -> str | Path:
    """Return what a label stands before, as in LABEL=PATH."""
    has_label = isinstance(wanted, str) and "=" in wanted and not Path(wanted).exists()
    return str(wanted).partition("=")[2] if has_label else wanted


def _kind_of(source: str | Path, asked: Kind) -> str | None:
    """Return what a name, run folder or weights file is; None if only loading it can decide."""
    if isinstance(source, str) and source in _TABLES[asked]:
        return asked
    path = Path(source)
    if path.exists():
        told = described(policy_file(path) if asked == "policy" else network_file(path))
        return None if told is None else told.kind
    names = {name: kind for kind, table in _TABLES.items() for name in table} | ZOO
    return names.get(source) if isinstance(source, str) else None
