"""A run of a campaign: its command, its inputs, and a name that identifies its result."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import final

from kscout.config import AcquisitionSetting
from kscout.config.options import flags
from kscout.json_types import JsonObject
from kscout.names import Protocol

_FOLDERS = {
    "store": "stores",
    "reconstructor": "reconstructors",
    "policy": "policies",
    "evaluation": "evaluations",
    "analysis": "analyses",
}
KINDS = tuple(_FOLDERS)
"""Kinds of runs, in the order of their dependencies."""
LOG = "log.txt"
_FORMAT = 1
"""Incremented if the meaning of a name changes, so that old folders are not used."""


@final
@dataclass(frozen=True)
class Node:
    """One run: a command of kscout that fills one folder.

    Its folder is `ROOT/KIND/KEY`. It contains `node.json` (this record), `log.txt`, `done.json` or
    `failed.json`, and the folder `label` with the command's output, whose name tables show.
    """

    root: Path
    kind: str
    label: str
    title: str
    """A readable title: `ngreedy-0.9 seed 1, knee, unet, 8+8`."""
    product: str
    """A file in the output that only exists if the run is complete."""
    words: Sequence[str]
    """Arguments of `kscout` without modules, files of settings and output."""
    settings: JsonObject
    """Settings that determine the result, without the inputs."""
    reads: Mapping[str, "Node | Source | Sequence[Node]"] = field(default_factory=dict)
    """Runs and sources that it depends on."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that the command reads, by name; they are written to the folder first."""
    group: str = ""
    """Runs of one kind and group take similar time."""
    use: tuple[str, ...] = ()
    """Modules of other packages."""

    @cached_property
    def key(self) -> str:
        """A hash of everything that determines the result."""
        keys = {
            name: [one.key for one in part] if isinstance(part, Sequence) else part.key
            for name, part in self.reads.items()
        }
        return address(self.kind, self.settings, keys)

    @property
    def inputs(self) -> list[str]:
        """Keys of the runs that it depends on."""
        parts = self.reads.values()
        flat = [x for part in parts for x in (part if isinstance(part, Sequence) else [part])]
        return [one.key for one in flat if isinstance(one, Node)]

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of `kscout`."""
        configs = flags({"config": [str(self.folder / name) for name in self.files]})
        return (*flags({"use": self.use}), *self.words, *configs, "--out", str(self.output))

    @property
    def folder(self) -> Path:
        return self.root / _FOLDERS[self.kind] / self.key

    @property
    def output(self) -> Path:
        """Return the output folder, also one that was named by an earlier version."""
        folder = self.folder / self.label
        before = [] if folder.exists() else list(self.folder.glob(f"*/{self.product}"))
        return before[0].parent if before else folder

    @property
    def path(self) -> str:
        return str(self.output)

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def record(self) -> JsonObject:
        """Return the content of `node.json` and of the campaign's index."""
        return {
            "kind": self.kind,
            "name": self.title,
            "key": self.key,
            "folder": str(self.folder.relative_to(self.root)),
            "output": str(self.output.relative_to(self.root)),
            "command": " ".join(["kscout", *self.command]),
            "settings": dict(self.settings),
            "inputs": self.inputs,
        }


@final
@dataclass(frozen=True)
class Source:
    """A given input of runs: a store or weights that this campaign does not make."""

    key: str
    """A hash of its content, or of its path if it does not exist."""
    path: str
    label: str
    product: Path | None = None
    """A file that exists if the source does; None for a name without a file."""
    hint: str = ""


def address(kind: str, settings: Mapping[str, object], inputs: Mapping[str, object]) -> str:
    """Return the name of a run: equal for equal settings and inputs, independent of their names."""
    text = json.dumps([_FORMAT, kind, settings, inputs], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@final
@dataclass(frozen=True)
class Setting:
    """The common part of policies of one store, reconstruction and horizon."""

    store: Node | Source
    network: Node | Source
    horizon: AcquisitionSetting
    protocol: Protocol
    device: str
    kind: str = "image"
    """Content of the store: `image`, or `kspace` of coils."""

    @property
    def label(self) -> str:
        """Return its label in tables and folders: `knee-64-unet-8+8`."""
        own = "" if self.horizon.initial is None else "own"
        columns = f"{self.horizon.n_initial}{own}+{self.horizon.horizon}"
        return f"{self.store.label}-{name_of(self.network)}-{columns}"

    @property
    def columns(self) -> JsonObject:
        """Return the options for the start and the length of acquisitions."""
        horizon = self.horizon
        start = "n_initial" if horizon.initial is None else "initial"
        return {start: getattr(horizon, start), "steps": horizon.horizon}

    @property
    def reads(self) -> dict[str, Node | Source]:
        """Return the common inputs of all its runs."""
        return {"data": self.store, "reconstructor": self.network}

    @property
    def words(self) -> list[str]:
        """Return the options of a command for these inputs."""
        options = {key: part.path for key, part in self.reads.items()}
        return flags({**options, "device": self.device})


def name_of(part: Node | Source) -> str:
    """Return the label of a store or reconstruction without its seed."""
    return part.label.rpartition("-seed")[0] or part.label


def file_name(name: str) -> str:
    """Return a name as part of a folder's name; that of a class `module:Class` has a colon."""
    return re.sub(r"[^\w.+-]", "-", name)
