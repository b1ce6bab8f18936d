"""Names of runs in tables: seeds of one method share a name, runs of other settings do not."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kscout.compressed import plain_stem
from kscout.errors import RunError
from kscout.json_types import JsonObject
from kscout.runs import CONFIG, RunRecord, read_run

Traits = dict[str, str]
"""Settings and inputs of a run in words, by their place: names of runs contain the differences."""

_SEED_AT_END = re.compile(r"(?:[-_.]?seed[-_=]?|[-_.]s)(\d+)$")
"""The seed at the end of a name; it is removed if something is left."""
_N_CHARACTERS = 8
"""Characters of a fingerprint in names."""


def split_label(source: str | Path) -> tuple[str | None, str | Path]:
    """Return the label of `LABEL=NAME` and the name; a path may contain an equals sign."""
    label, equals, name = str(source).partition("=")
    has_label = isinstance(source, str) and equals and not Path(source).exists()
    return (label, name) if has_label else (None, source)


def run_label(path: Path) -> str:
    """Return the name of a run in tables: that of its folder without the seed.

    If the folder has only a seed as its name, its parent is used; files other than the last weights
    are added, as in `greedy/best`.
    """
    path = path.resolve()
    folder, stem = path if path.is_dir() else path.parent, plain_stem(path)
    if not path.is_dir() and not (folder / CONFIG).is_file():
        return _SEED_AT_END.sub("", stem) or stem
    label = _SEED_AT_END.sub("", folder.name) or folder.parent.name
    is_last = path.is_dir() or stem == "weights"
    return label if is_last else f"{label}/{stem}"


def seed_in(path: Path) -> int:
    """Return the seed in the name of a file or folder; 0 without one."""
    match = _SEED_AT_END.search(plain_stem(path))
    return int(match.group(1)) if match else 0


def without_seed(config: JsonObject) -> JsonObject:
    """Return the settings without the seed."""
    training = {key: value for key, value in config["training"].items() if key != "seed"}
    return {**config, "training": training}


def folder_labels(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest distinct names of folders, from their last parts."""
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

    Names of runs with one label contain their different settings or inputs, as in
    `greedy, 16+16` and `greedy, 4+28`; a second run of the same seed is `run 2`.
    """
    if not runs:
        raise RunError("no run folder was given; name at least one")
    labels = [run_label(path) for path in runs]
    records = [_read(path) for path in runs]
    traits = [_traits(record) for record in records]
    n_seen: dict[str, int] = {}
    for label, trait, record in zip(labels, traits, records, strict=True):
        key = json.dumps([label, trait, record.config["training"]["seed"]])
        n_seen[key] = n_seen.get(key, 0) + 1
        trait["copy"] = f"run {n_seen[key]}"
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
    """Read run folders, grouped by their name in tables and sorted by seed."""
    groups: dict[str, list[RunRecord]] = {}
    for name, record in named_runs(runs):
        groups.setdefault(name, []).append(record)
    return {
        name: sorted(records, key=lambda record: record.config["training"]["seed"])
        for name, records in groups.items()
    }


def _suffixes(group: Sequence[Traits]) -> list[str]:
    """Return the fewest traits that distinguish the runs of a group."""
    keys = list(dict.fromkeys(key for traits in group for key in traits))
    suffixes: list[list[str]] = [[] for _ in group]
    for key in keys:
        more = [[*words, trait.get(key, "")] for words, trait in zip(suffixes, group, strict=True)]
        if len({*map(tuple, more)}) > len({*map(tuple, suffixes)}):
            suffixes = more
    return [", ".join(filter(None, words)) for words in suffixes]


def _traits(record: RunRecord) -> Traits:
    """Return the settings and inputs of a run in words."""
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


def _leaves(table: Mapping[str, object], where: str = "") -> list[tuple[str, object]]:
    """Return the values of nested tables by their dotted keys."""
    leaves: list[tuple[str, object]] = []
    for key, value in table.items():
        place = f"{where}.{key}".lstrip(".")
        leaves += _leaves(value, place) if isinstance(value, dict) else [(place, value)]
    return leaves
