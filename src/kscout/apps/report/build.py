"""From folders to a report: what `kscout report` calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from kscout import __version__
from kscout.apps.player import acquisition_player
from kscout.apps.report.evaluations import describe_comparisons, opening, result_parts
from kscout.apps.report.page import Front, save_figures, write_page
from kscout.config import to_table
from kscout.errors import DataError, unknown_name
from kscout.evaluation.analyses import Page, ReportInputs, Tabulated, find_tables, protocols_in
from kscout.evaluation.records.acquisitions import ACQUISITIONS, SliceRecord, load_acquisition
from kscout.evaluation.records.results import RESULTS
from kscout.evaluation.records.run_names import folder_labels
from kscout.evaluation.summaries.overview import curves_of, overview_table
from kscout.evaluation.summaries.summary import SUMMARY, EvaluationFolder, Summary, read_summary
from kscout.figures.blocks import Block, Prose, Section, Widget, labeled, link_name, under_protocol
from kscout.figures.series import SERIES, LineStyle, styles_of
from kscout.figures.tables import EXTENSIONS, FORMATS, Table, write
from kscout.files import check_replaceable, locked, parse_toml, read_json, read_text, write_text
from kscout.json_types import JsonObject
from kscout.names import ANALYSES
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


PLAYER_TITLE = "One acquisition, step by step"
PICTURE_BYTES = 1_600_000
"""Limit in bytes for the images of all recorded slices of a page."""
_SAME = (
    "All policies start from the same columns, and can be shown or hidden by name; error maps "
    "share one scale. On a large page, pictures are compressed and steps omitted; scores refer to "
    "the original images."
)
_PLAYED = f"Move the slider or press play: columns are measured step by step. {_SAME}"
_STILL = "After the last step."


@final
@dataclass(frozen=True)
class Report:
    """A report, independent of its output format."""

    front: Front
    sections: tuple[Section, ...]
    provenance: dict[str, dict[str, str]]

    @property
    def tables(self) -> list[Table]:
        """All tables in order."""
        return [
            block for part in self.sections for block in part.blocks if isinstance(block, Table)
        ]


def build_report(folders: Sequence[str | Path], *, title: str | None = None) -> Report:
    """Read folders and lay out a report; only sections with data appear."""
    contents = search(folders)
    styles = looks_of(*(one.summary for one in contents.evaluations))
    sections = [*_evaluation_sections(contents, styles), *analysis_sections(contents, styles)]
    return Report(
        front=_front(contents, title),
        sections=tuple(section for section in sections if section.blocks),
        provenance=contents.provenance,
    )


def looks_of(*summaries: Summary) -> dict[str, LineStyle]:
    """Return the line styles of policies for all evaluations of a page, player included."""
    curves = [curve for summary in summaries for curve in curves_of(summary)]
    first = {name for summary in summaries for name in summary.shown_first}
    # Colors may be too few for all policies, but not for those shown next to each other.
    return styles_of(sorted(curves, key=lambda curve: curve.name not in first))


def analysis_sections(contents: FolderContents, styles: dict[str, LineStyle]) -> list[Section]:
    """Return the analyses, from their tables or else from runs and results."""
    page = Page(styles, settings=_paper_settings(contents.evaluations))
    names = [table.name for _, table in contents.tables]
    order = [*ANALYSES, *(name for name in dict.fromkeys(names) if name not in ANALYSES.entries)]
    parts: dict[str, list[Block]] = {}
    for label, table in sorted(contents.tables, key=lambda pair: order.index(pair[1].name)):
        if table.title:
            blocks = table.blocks(page)
            is_one = names.count(table.name) == 1
            parts.setdefault(table.title, []).extend(blocks if is_one else labeled(blocks, label))
    runs = [run.path for run in contents.runs if run.metrics]
    inputs = ReportInputs(runs, contents.evaluations)
    asked = set(parts)
    for name in ANALYSES.entries:
        kind = ANALYSES.resolve(name)
        if kind.title not in asked and (blocks := kind.blocks_without_table(inputs, page)):
            protocol = protocols_in(run.config for run in contents.runs)
            own = under_protocol(blocks, protocol if kind.reads == "runs" else None)
            parts.setdefault(kind.title, []).extend(own)
    return [Section(title, tuple(blocks)) for title, blocks in parts.items() if blocks]


def _paper_settings(evaluations: Sequence[EvaluationFolder]) -> dict[tuple[int, int], str | None]:
    """Return the paper's settings by start and steps; None if they are not the paper's."""
    settings: dict[tuple[int, int], str | None] = {}
    for one in evaluations:
        setting = one.summary.paper_setting
        name = setting.name if setting else None
        key = (one.summary.n_initial, one.summary.steps)
        settings[key] = name if settings.get(key, name) == name else None
    return settings


def _evaluation_sections(contents: FolderContents, styles: dict[str, LineStyle]) -> list[Section]:
    evaluations, widgets = contents.evaluations, _players(contents, styles)
    folders = [one.path for one in evaluations]
    loose = [one for folder, players in widgets.items() if folder not in folders for one in players]
    sections = [Section("Overview", (overview_table(evaluations),))] if evaluations[1:] else []
    for one in evaluations:
        players = under_protocol(widgets.get(one.path, []), one.summary.protocol)
        played, stills = players[:1], players[1:]
        parts: dict[str, tuple[Block, ...]] = {PLAYER_TITLE: tuple(played)}
        is_only = len(folders) == 1
        stem = "" if is_only else f"{link_name(one.label)}-"
        parts |= {**result_parts(one.summary, styles, stem=stem), "Example images": tuple(stills)}
        if is_only:
            sections += [Section(title, blocks) for title, blocks in parts.items()]
        else:
            first = [Prose(sentence) for sentence in opening(one.summary)]
            blocks = (*first, *(block for part in parts.values() for block in part))
            sections.append(Section(one.label, blocks))
    return [*sections, Section(PLAYER_TITLE, tuple(loose))]


def _players(contents: FolderContents, styles: dict[str, LineStyle]) -> dict[Path, list[Widget]]:
    """Return the players of the slices recorded in each folder, within a common size limit."""
    colors = policy_colors(styles)
    n_frames = sum(len(acquisition.steps) for _, acquisition in contents.acquisitions)
    widgets: dict[Path, list[Widget]] = {}
    for number, (folder, acquisition) in enumerate(contents.acquisitions, start=1):
        n_bytes = PICTURE_BYTES * len(acquisition.steps) // n_frames
        widget = player_widget(acquisition, f"player-{number}", colors=colors, n_bytes=n_bytes)
        widgets.setdefault(folder, []).append(widget)
    return widgets


def policy_colors(styles: Mapping[str, LineStyle]) -> dict[str, int]:
    """Return the color number of each policy, for the player."""
    return {
        name: SERIES.index(style.color) + 1
        for name, style in styles.items()
        if style.color in SERIES
    }


def player_widget(
    acquisition: SliceRecord,
    name: str,
    *,
    colors: Mapping[str, int] | None = None,
    n_bytes: int = PICTURE_BYTES,
) -> Widget:
    """Return the player of one recorded slice, with its caption."""
    html = acquisition_player(acquisition, name=name, colors=colors, n_bytes=n_bytes)
    return Widget(html, f"{acquisition.title}. {_PLAYED if acquisition.steps[1:] else _STILL}")


def _front(contents: FolderContents, title: str | None) -> Front:
    evaluations = contents.evaluations
    if len(evaluations) == 1:
        return Front(title or "Acquisition policies compared", opening(evaluations[0].summary))
    if evaluations:
        protocols = ", ".join(dict.fromkeys(one.summary.protocol for one in evaluations))
        return Front(
            title or "Acquisition policies compared",
            (describe_comparisons(evaluations),),
            facts={"Evaluations": str(len(evaluations)), "Protocol": protocols},
        )
    n_runs = len(contents.runs)
    if not n_runs:
        titles = dict.fromkeys(table.title.lower() for _, table in contents.tables if table.title)
        headline = ", ".join(titles) or "recorded acquisitions"
        return Front(title or "Analyses", (f"{headline[0].upper()}{headline[1:]}.",))
    if n_runs != 1 or not contents.runs[0].metrics:
        words = f"{n_runs} training run{'s' if n_runs != 1 else ''}, not yet compared on test data."
        return Front(title or "Training runs", (words,))
    run, last = contents.runs[0], contents.runs[0].metrics[-1]
    words = f"**{run.path.name}**, not yet compared on test data"
    if isinstance(score := last.get("val_ssim"), int | float):
        words += f", reaches validation SSIM {score:.4f} after epoch {last.get('epoch')}"
        words += run.zero_filled_text
    return Front(title or "One training run", (f"{words}.",))


def write_report(
    report: Report,
    out: Path,
    *,
    form: str = "html",
    figures: Path | None = None,
    has_notes: bool = False,
) -> list[Path]:
    """Write the page, or its tables in another format, and optionally the figures.

    CSV has one table per file: with several tables, the name of each is added to the file name.
    `figures` is a folder for PNG, SVG and PDF of every figure; with `has_notes`, the notes of LaTeX
    tables are printed below them.
    """
    if form not in FORMATS:
        raise unknown_name("format", form, list(FORMATS))
    check_replaceable(out)
    with locked(out.parent, wait=True, name=f".{out.name}.lock"):
        # First, because a folder of that name may be impossible.
        drawn = [] if figures is None else save_figures(report.sections, figures)
        if form == "html":
            paths = [write_page(report.front, report.sections, out, provenance=report.provenance)]
        else:
            paths = _write_tables(report.tables, out, form, has_notes)
        return paths + drawn


def _write_tables(tables: Sequence[Table], out: Path, form: str, has_notes: bool) -> list[Path]:
    if not tables:
        raise DataError("the report has no table to write; use --format html")
    if form != "csv" or len(tables) == 1:
        write_text(out, write(tables, form, has_notes=has_notes))
        return [out]
    paths = [out.with_name(f"{out.stem}-{table.name}{EXTENSIONS[form]}") for table in tables]
    for path, table in zip(paths, tables, strict=True):
        write_text(path, write([table], form))
    return paths
