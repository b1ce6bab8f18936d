"""What tables call runs: seeds of one method share a name, runs of other settings do not."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kscout.compressed import plain_stem
from kscout.errors import RunError
from kscout.runs import CONFIG, RunRecord, read_run

Traits = dict[str, str]
"""What sets the runs of one label apart, as names tell it, by where it stands."""

_SEED_AT_END = re.compile(r"(?:[-_.]?seed[-_=]?|[-_.]s)(\d+)$")
"""A name that is nothing else, like `s2`, is told as it is, but for the word itself."""
_N_CHARACTERS = 8
"""Of a fingerprint: enough to tell two inputs apart."""


def run_label(path: Path) -> str:
    """Return what tables call a run: its folder's name without the seed.

    A folder that is named by its seed alone lends its parent's name; a file other than the last
    weights of a run adds its own, as in `greedy/best`.
    """
    path = path.resolve()
    folder, stem = path if path.is_dir() else path.parent, plain_stem(path)
    if not path.is_dir() and not (folder / CONFIG).is_file():
        return _SEED_AT_END.sub("", stem) or stem
    label = _SEED_AT_END.sub("", folder.name) or folder.parent.name
    is_last = path.is_dir() or stem == "weights"
    return label if is_last else f"{label}/{stem}"


def seed_in(path: Path) -> int:
    """Return the seed that a file or folder is named after, 0 where it names none."""
    found = _SEED_AT_END.search(plain_stem(path))
    return int(found.group(1)) if found else 0


def without_seed(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that seeds of one method share."""
    training = {key: value for key, value in config["training"].items() if key != "seed"}
    return {**config, "training": training}


def folder_labels(folders: Sequence[Path]) -> dict[Path, str]:
    """Name folders by as few of their last parts as tell them apart."""
    labels = {}
    for folder in folders:
        for n_parts in range(1, len(folder.parts)):
            label = "/".join(folder.parts[-n_parts:])
            if sum("/".join(other.parts[-n_parts:]) == label for other in folders) == 1:
                break
        labels[folder] = label
    return labels


def named_runs(runs: Sequence[Path]) -> list[tuple[str, RunRecord]]:
    """Read run folders, each with its name in tables.

    Runs of one label that differ in settings or inputs are told apart by what differs, as in
    `greedy, 16+16` and `greedy, 4+28`; a second run of the same seed is `run 2`.
    """
    if not runs:
        raise RunError("no run folder was given; name at least one")
    labels = [run_label(path) for path in runs]
    records = [_read(path) for path in runs]
    traits = [_traits(record) for record in records]
    n_seen: dict[str, int] = {}
    for label, own, record in zip(labels, traits, records, strict=True):
        key = json.dumps([label, own, record.config["training"]["seed"]])
        n_seen[key] = n_seen.get(key, 0) + 1
        own["copy"] = f"run {n_seen[key]}"
    names = list(labels)
    for label in dict.fromkeys(labels):
        places = [place for place, other in enumerate(labels) if other == label]
        suffixes = _suffixes([traits[place] for place in places])
        for place, suffix in zip(places, suffixes, strict=True):
            names[place] = f"{label}, {suffix}" if suffix else label
    return list(zip(names, records, strict=True))


def _read(path: Path) -> RunRecord:
    record = read_run(path)
    for line in record.metrics:
        for key in ("val_ssim", "time_s"):
            if key not in line:
                raise RunError(
                    f"{path} is damaged: epoch {line['epoch']} of its metrics has no {key}; "
                    "leave it out, or train again"
                )
    return record


def grouped_runs(runs: Sequence[Path]) -> dict[str, list[RunRecord]]:
    """Read run folders, grouped under the name that tables call them, by seed."""
    groups: dict[str, list[RunRecord]] = {}
    for name, record in named_runs(runs):
        groups.setdefault(name, []).append(record)
    return {
        name: sorted(records, key=lambda record: record.config["training"]["seed"])
        for name, records in groups.items()
    }


def _suffixes(group: Sequence[Traits]) -> list[str]:
    """Return for each run as few of its traits as tell those of the group apart."""
    keys = list(dict.fromkeys(key for traits in group for key in traits))
    told: list[list[str]] = [[] for _ in group]
    for key in keys:
        more = [[*words, one.get(key, "")] for words, one in zip(told, group, strict=True)]
        if len({*map(tuple, more)}) > len({*map(tuple, told)}):
            told = more
    return [", ".join(filter(None, words)) for words in told]


def _traits(record: RunRecord) -> Traits:
    """Return all that makes a run another method than its neighbor: settings and inputs."""
    config = without_seed(record.config)
    acquisition = config.get("acquisition", {})
    budget = [str(acquisition[key]) for key in ("n_initial", "horizon") if key in acquisition]
    inputs = record.provenance.inputs
    return {
        "kind": record.kind,
        "budget": "+".join(budget),
        **{where: f"{where.split('.')[-1]} {value}" for where, value in _leaves(config)},
        **{f"inputs.{key}": f"{key} {value[:_N_CHARACTERS]}" for key, value in inputs.items()},
    }


def _leaves(table: Mapping[str, Any], where: str = "") -> list[tuple[str, Any]]:
    """Return the values of nested tables by their place in words."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        place = f"{where}.{key}".lstrip(".")
        found += _leaves(value, place) if isinstance(value, dict) else [(place, value)]
    return found
