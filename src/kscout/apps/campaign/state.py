"""The state of a campaign on disk: finished, running, failed and waiting runs, and the time left.

The folder of a run has a lock that is held while any process of the run lives, so that a kill
cannot leave a wrong state on disk.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Literal, final

from kscout.apps.campaign.nodes import KINDS, Node
from kscout.apps.campaign.plan import INDEX, CampaignPlan
from kscout.config import to_table
from kscout.errors import RunError
from kscout.files import is_locked, now, read_record, write_json
from kscout.json_types import JsonObject
from kscout.names import is_outside

State = Literal["waiting", "running", "done", "failed"]
STATES: tuple[State, ...] = ("waiting", "running", "done", "failed")
DONE, FAILED, NODE = "done.json", "failed.json", "node.json"


def is_done(folder: Path, product: Path) -> bool:
    """Return whether a run has succeeded and its product still exists."""
    return (folder / DONE).is_file() and product.is_file()


def node_state(node: Node) -> State:
    """Return a run's state."""
    if is_done(node.folder, node.output / node.product):
        return "done"
    if not node.folder.is_dir():
        return "waiting"
    if is_locked(node.folder):
        return "running"
    return "failed" if (node.folder / FAILED).is_file() else "waiting"


@final
@dataclass(frozen=True)
class Failure:
    """A failed run."""

    kind: str
    name: str
    reason: str
    log: str


@final
@dataclass(frozen=True)
class UnderWay:
    """A running run."""

    kind: str
    name: str
    seconds: float
    """Seconds since its start."""
    epoch: int | None
    """Finished epochs; None for a run without epochs."""
    n_epochs: int | None
    log: str


@final
@dataclass(frozen=True)
class Status:
    """Status of a campaign."""

    name: str
    root: Path
    counts: dict[str, dict[State, int]]
    """Number of runs by kind and state."""
    failed: list[Failure]
    running: list[UnderWay]
    missing: list[str]
    """Given stores and weights that do not exist."""
    time_left_s: float | None
    """None if no run similar to a remaining one has been finished."""

    def total(self, state: State) -> int:
        return sum(by_state[state] for by_state in self.counts.values())

    @property
    def n_runs(self) -> int:
        return sum(self.total(state) for state in STATES)

    def to_json(self) -> JsonObject:
        """Return the output of `campaign status --json`."""
        return {
            "campaign": self.name,
            "folder": str(self.root),
            "counts": self.counts,
            "total": {**{state: self.total(state) for state in STATES}, "runs": self.n_runs},
            "trainings": sum(sum(self.counts[kind].values()) for kind in KINDS[1:3]),
            "running": [to_table(one, nulls=True) for one in self.running],
            "failed": [to_table(one) for one in self.failed],
            "missing": self.missing,
            "time_left_s": self.time_left_s,
        }


def read_status(plan: CampaignPlan) -> Status:
    """Read the state of every run's folder."""
    with_state: dict[State, list[Node]] = {state: [] for state in STATES}
    for node in plan.nodes.values():
        with_state[node_state(node)].append(node)
    counts = {
        kind: {state: sum(x.kind == kind for x in nodes) for state, nodes in with_state.items()}
        for kind in KINDS
    }
    return Status(
        name=plan.name,
        root=plan.root,
        counts=counts,
        failed=[_failure(node) for node in with_state["failed"]],
        running=[_under_way(node) for node in with_state["running"]],
        missing=[source.path for source in plan.missing],
        time_left_s=time_left(with_state),
    )


def _failure(node: Node) -> Failure:
    reason = read_record(node.folder / FAILED, reason=str).get("reason", "unknown")
    return Failure(node.kind, node.title, reason, str(node.log))


def _under_way(node: Node) -> UnderWay:
    record = read_record(node.folder / NODE, started_s=float)
    seconds = max(0.0, time.time() - record["started_s"]) if "started_s" in record else 0.0
    metrics = node.output / "metrics.jsonl"
    return UnderWay(
        kind=node.kind,
        name=node.title,
        seconds=round(seconds, 1),
        epoch=metrics.read_bytes().count(b"\n") if metrics.is_file() else None,
        n_epochs=node.settings.get("training", {}).get("n_epochs"),
        log=str(node.log),
    )


def time_left(with_state: Mapping[State, Sequence[Node]]) -> float | None:
    """Estimate the time left in seconds, from runs of the same group and from finished epochs."""
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    for node in with_state["done"]:
        seconds = read_record(node.folder / DONE, seconds=float).get("seconds")
        if seconds is not None:
            seen[node.kind, node.group].append(seconds)
    spent_s = {node.key: 0.0 for node in with_state["waiting"]}
    for node in with_state["running"]:
        run = _under_way(node)
        spent_s[node.key] = run.seconds
        if run.epoch and run.n_epochs:
            seen[node.kind, node.group].append(run.seconds * run.n_epochs / run.epoch)
    left_s = 0.0
    for node in (*with_state["running"], *with_state["waiting"]):
        if not seen[node.kind, node.group]:
            return None
        left_s += max(0.0, fmean(seen[node.kind, node.group]) - spent_s[node.key])
    return left_s / max(1, len(with_state["running"]))


def write_index(plan: CampaignPlan, file: str) -> None:
    """Write `campaign.json`: all runs with their folders, settings and states, for reports."""
    nodes = []
    for node in plan.nodes.values():
        state = node_state(node)
        record = {**node.record(), "state": state}
        if state == "done":
            record["seconds"] = read_record(node.folder / DONE, seconds=float).get("seconds")
        elif state == "failed":
            log = str(node.log.relative_to(plan.root))
            record |= {"reason": _failure(node).reason, "log": log}
        nodes.append(record)
    index = {
        "format": 1,
        "campaign": plan.name,
        "file": file,
        "date": now(),
        "sources": plan.sources,
        "kspace": plan.kspace,
        "protocols": plan.protocols,
        "nodes": nodes,
    }
    try:
        write_json(plan.root / INDEX, index)
    except OSError as error:
        raise RunError(
            f"cannot write {plan.root / INDEX}: {error.strerror}; free some space and repeat the "
            "command, which resumes"
        ) from error


def changed_inputs(plan: CampaignPlan) -> str | None:
    """Return a warning for finished runs whose imported files or modules are newer."""
    files: list[Path] = []
    """The first newer file of each run that has one."""
    for node in plan.nodes.values():
        if node_state(node) == "done":
            finished = (node.folder / DONE).stat().st_mtime
            newer = (file for file in _inputs(node) if file.stat().st_mtime > finished)
            files += islice(newer, 1)
    if not files:
        return None
    names, count = list(dict.fromkeys(map(str, files))), len(files)
    listed = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
    those = f"{count} finished runs, whose results are" if count > 1 else "a run, whose result is"
    return (
        f"{listed} changed after {those} not computed again; to run everything again, name another "
        "--out"
    )


def _inputs(node: Node) -> Iterator[Path]:
    """Yield the files that a run reads and that are not part of its key."""
    for key in ("import", "source") if node.kind == "store" else ():
        source = node.settings.get(key, [])
        for path in map(Path, [source] if isinstance(source, str) else source):
            yield from [path] if path.is_file() else ()
            for folder, _, names in os.walk(path):
                yield from (file for name in names if (file := Path(folder, name)).is_file())
    modules = {word.partition(":")[0] for word in _words(node) if is_outside(word)}
    yield from filter(None, map(_module_file, sorted(modules)))


def _words(node: Node) -> Iterator[str]:
    """Yield all words of a command and its settings, and the modules of `--use` as `module:x`."""
    for before, word in zip(("", *node.command), node.command, strict=False):
        yield f"{word}:x" if before == "--use" else word
    for text in node.files.values():
        yield from text.replace('"', " ").split()


def _module_file(module: str) -> Path | None:
    top, *rest = module.split(".")
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    file = file.parent.joinpath(*rest).with_suffix(".py") if rest else file
    return file if file.is_file() else None
