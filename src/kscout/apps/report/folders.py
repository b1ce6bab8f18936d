"""Finding the content of a report in folders, with its provenance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from kscout import __version__
from kscout.config import to_table
from kscout.errors import DataError
from kscout.evaluation.analyses import Tabulated, find_tables
from kscout.evaluation.records.acquisitions import ACQUISITIONS, SliceRecord, load_acquisition
from kscout.evaluation.records.results import RESULTS
from kscout.evaluation.records.run_names import folder_labels
from kscout.evaluation.summaries.summary import SUMMARY, EvaluationFolder, read_summary
from kscout.files import parse_toml, read_json, read_text
from kscout.json_types import JsonObject
from kscout.runs import CONFIG, PROVENANCE, RunRecord, read_run

_ORIGIN = (
    "protocol",
    "metric_convention",
    "store",
    "store_fingerprint",
    "split",
    "limit",
    "reconstructor",
    "reconstructor_fingerprint",
    "is_argmax",
    "draw_seeds",
)

_DRAWN_WITH = ("numpy", "matplotlib")

Facts = dict[str, str]


@final
@dataclass(frozen=True)
class FolderContents:
    """The content of the folders of a report."""

    evaluations: tuple[EvaluationFolder, ...]
    runs: tuple[RunRecord, ...]
    acquisitions: tuple[tuple[Path, SliceRecord], ...]
    """Folder and recorded slice."""
    tables: tuple[tuple[str, Tabulated], ...]
    """Label of the folder, and a table of `kscout analyze`."""
    provenance: dict[str, Facts]


def search(names: Sequence[str | Path]) -> FolderContents:
    """Search folders and their subfolders for evaluations, runs and analyses."""
    paths = [Path(name) for name in names]
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; name run, evaluation or analysis folders")
    folders = folder_labels(_folders(paths))
    evaluations = [
        EvaluationFolder(label, folder, read_summary(folder))
        for folder, label in folders.items()
        if _is_evaluation(folder)
    ]
    runs = [(label, read_run(folder)) for folder, label in folders.items() if _is_run(folder)]
    contents = FolderContents(
        evaluations=tuple(evaluations),
        runs=tuple(run for _, run in runs),
        acquisitions=tuple(
            (folder, load_acquisition(file))
            for folder in folders
            for file in sorted(folder.glob(ACQUISITIONS))
        ),
        tables=tuple(
            (label, table) for folder, label in folders.items() for table in find_tables(folder)
        ),
        provenance=_provenance(evaluations, runs),
    )
    if not (contents.evaluations or contents.runs or contents.acquisitions or contents.tables):
        raise DataError(
            f"nothing to report in {', '.join(map(str, paths))}: no {SUMMARY} of "
            f"`kscout evaluate`, no run folder ({CONFIG} and {PROVENANCE}), no output of "
            "`kscout analyze`; name a folder that has any of these"
        )
    return contents


def _folders(paths: Sequence[Path]) -> list[Path]:
    """Return folders and their subfolders, each once although links may lead to it again."""
    folders: dict[Path, Path] = {}
    left = [path.resolve() for path in reversed(paths)]
    while left:
        folder = left.pop()
        if (place := folder.resolve()) not in folders:
            folders[place] = folder
            inner = sorted(folder.iterdir(), reverse=True)
            left += [path for path in inner if path.is_dir() and path.name[0] != "."]
    return list(folders.values())


def _is_evaluation(folder: Path) -> bool:
    """Return whether a folder has a summary of `kscout evaluate`, possibly damaged."""
    if not (folder / SUMMARY).is_file():
        return False
    has_policies = isinstance((_json(folder / SUMMARY) or {}).get("policies"), list)
    return has_policies or (folder / RESULTS).is_file()


def _is_run(folder: Path) -> bool:
    if not ((folder / CONFIG).is_file() and (folder / PROVENANCE).is_file()):
        return False
    return "kind" in _load(folder / CONFIG, lambda path: parse_toml(read_text(path)))


def _json(path: Path) -> JsonObject | None:
    value = _load(path) if path.is_file() else None
    return value if isinstance(value, dict) else None


def _load(path: Path, read: Callable[[Path], Any] = read_json) -> Any:  # noqa: ANN401 - any value
    try:
        return read(path)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); generate it again") from error


def _provenance(
    evaluations: Sequence[EvaluationFolder], runs: Sequence[tuple[str, RunRecord]]
) -> dict[str, Facts]:
    packages = [f"kscout {__version__}", *(f"{one} {version(one)}" for one in _DRAWN_WITH)]
    facts = {"This page": {"made with": ", ".join(packages)}}
    for one in evaluations:
        keys = {key: getattr(one.summary, key) for key in _ORIGIN}
        facts[f"Evaluation: {one.label}"] = _flat({**keys, **(_json(one.path / PROVENANCE) or {})})
    for label, run in runs:
        facts[f"Run: {label}"] = _flat(to_table(run.provenance))
    return facts


def _flat(record: Mapping[str, object]) -> Facts:
    flat = {}
    for key, value in record.items():
        if isinstance(value, dict):
            text = ", ".join(f"{name} {inner}" for name, inner in value.items())
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value))
        else:
            text = "" if value is None else str(value)
        if text:
            flat[key.replace("_", " ")] = text
    return flat
