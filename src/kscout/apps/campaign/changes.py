"""Changes of inputs that are not part of a run's key: imported files, and modules of the user."""

import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from kscout.apps.campaign.nodes import Node
from kscout.apps.campaign.plan import CampaignPlan
from kscout.apps.campaign.state import DONE, node_state
from kscout.names import is_outside


def changed_inputs(plan: CampaignPlan) -> str | None:
    """Return a warning for finished runs whose imported files or modules are newer."""
    runs: dict[str, int] = {}
    for node in plan.nodes.values():
        if node_state(node) != "done":
            continue
        finished = (node.folder / DONE).stat().st_mtime
        for file in _inputs(node):
            if file.stat().st_mtime > finished:
                runs[str(file)] = runs.get(str(file), 0) + 1
                break
    if not runs:
        return None
    listed = ", ".join(list(runs)[:3]) + ", ..." * (len(runs) > 3)
    count = sum(runs.values())
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
    """Return the file of a module without importing it."""
    top, *rest = module.split(".")
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    file = file.parent.joinpath(*rest).with_suffix(".py") if rest else file
    return file if file.is_file() else None
