"""Results of policies: `kscout evaluate`, `kscout analyze` and `kscout report`.

`kscout analyze` has one command per analysis, generated from its options on first use.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kscout.apps.cli.console import Commands, counted, print_result
from kscout.apps.cli.options import AsJson, ResultOptions, from_fields, with_fields
from kscout.apps.cli.progress import task_progress
from kscout.config import to_table
from kscout.config.bounds import Form
from kscout.config.options import with_options
from kscout.evaluation.request import EvaluationSetting
from kscout.figures.tables import decimals
from kscout.json_types import JsonObject
from kscout.names import ANALYSES, RECONSTRUCTION_WORDS
from kscout.names.renamed import check_current

if TYPE_CHECKING:
    from kscout.evaluation.summaries.summary import Comparison, PolicySummary, Summary


@with_fields(EvaluationSetting, required=("data", "reconstructor", "policies"))
@from_fields
def evaluate(results: ResultOptions, **fields: Any) -> None:  # noqa: ANN401 - values of the fields
    """Run policies over one split with one reconstruction, and compare them.

    Example: kscout evaluate --data stores/knee --reconstructor runs/unet --n-initial 16 --steps 16
    --policy random --policy fixed --policy greedy=runs/greedy --policy oracle
    --out results/knee
    """
    from kscout.evaluation.compare import evaluate as run_evaluation

    asked = with_options(EvaluationSetting, fields)
    with task_progress() as on_step:
        found = run_evaluation(
            *(asked.policies, asked.data, asked.reconstructor, asked),
            out=results.out,
            overwrite=results.overwrite,
            on_step=on_step,
        )
    line = f"wrote {results.out}/results.csv and {results.out}/summary.json"
    print_result(found.summary, summary_table(found.found), line, as_json=results.as_json)


def summary_table(summary: "Summary") -> Table:
    """Return the final scores, best first, oracles marked and apart."""
    from kscout.evaluation.statistics import NO_INTERVALS

    title = (
        f"{summary.store} {summary.split}: {summary.scored_on}\n{summary.n_initial} + "
        f"{summary.steps} of {summary.n_cols} columns{_pace(summary)}, protocol {summary.protocol}"
    )
    title += f"\n{summary.choice}" if summary.choice else ""
    table = _plain_table(title)
    table.add_column("policy", overflow="fold", min_width=16)
    # Headers of two lines: the table fits into 80 characters, and no number is wrapped.
    minus = f"minus\n{summary.reference}"
    names = ["SSIM", "PSNR", minus, "95 % interval", "p\n(Holm)"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    ranked = summary.ranked
    for entry, after in zip(ranked, [*ranked[1:], None], strict=True):
        ends = after is not None and after.is_oracle and not entry.is_oracle
        table.add_row(*_cells(entry, summary.comparison(entry.policy)), end_section=ends)
    notes = sorted({one.note for one in summary.comparisons if one.note})
    if not summary.has_intervals:
        notes.append(NO_INTERVALS)
    has_oracles = any(entry.is_oracle for entry in ranked)
    marks = ["* oracle: uses the ground truth, no scanner can"] if has_oracles else []
    epochs = {one.policy: one.training.epochs for one in ranked if one.training}
    words = [f"{name} {', '.join(map(str, own))}" for name, own in epochs.items() if own]
    marks += [f"epochs: {'; '.join(words)}"] if words else []
    table.caption = "\n".join([*marks, *notes]) or None
    table.caption_justify = "left"
    return table


def _plain_table(title: str | None) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )


def _pace(summary: "Summary") -> str:
    """Return how the acquisitions differ from one column at a time around the center."""
    k = summary.columns_per_step
    return f"{' (own start)' if summary.initial else ''}{f', {k} per step' if k > 1 else ''}"


def _cells(entry: "PolicySummary", compared: "Comparison | None") -> list[str]:
    ssim = entry.final["ssim"]
    std = "" if ssim.std is None else f" ± {ssim.std:.4f}"
    name = f"{entry.policy} *" if entry.is_oracle else entry.policy
    cells = [name, f"{ssim.mean:.4f}{std}", f"{entry.final['psnr'].mean:.2f}"]
    if compared is None:
        return [*cells, "–", "", ""]
    ends = [] if compared.interval is None else [_signed(end) for end in compared.interval]
    p_value = f"{compared.p_value_corrected:.3g}"
    return [*cells, _signed(compared.difference), " .. ".join(ends), p_value]


def _signed(difference: float) -> str:
    return f"{difference:+.4f}".replace("0.", ".", 1)


_INPUTS = {
    "policies": ("POLICY", "Run folders, weights files or names."),
    "reconstructions": ("RECONSTRUCTION", f"{RECONSTRUCTION_WORDS[:-1]}, or LABEL=PATH."),
    "runs": ("RUN", "Run folders."),
    "results": ("RESULTS", "Folders that `evaluate` wrote."),
}


class _Commands(Mapping[str, Any]):
    """The command of every registered analysis, including those of other packages."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a command of typer
        if name not in ANALYSES:
            check_current("analysis", name)
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


class _Analyses(Commands):
    """The command group of the analyses."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - options of typer
        super().__init__(**options)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(
    cls=_Analyses,
    no_args_is_help=True,
    help="""Analyze runs and results: the paper's analyses, and your own.

    Example: kscout analyze curves runs/greedy --out analyses""",
)


@cache
def _command(name: str) -> Any:  # noqa: ANN401 - a command of typer
    kind = ANALYSES.resolve(name)
    metavar, description = _INPUTS[kind.reads]

    def call(
        results: ResultOptions,
        /,
        given: Annotated[list[str], typer.Argument(metavar=metavar, help=description)],
        **fields: Any,  # noqa: ANN401 - values of its fields
    ) -> None:
        _run(with_options(kind, fields), given, results)

    call.__doc__ = kind.__doc__
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(with_fields(kind, required=kind.required)(from_fields(call)))
    return typer.main.get_command(single)


def _run(analysis: Any, inputs: list[str], results: ResultOptions) -> None:  # noqa: ANN401
    from kscout.evaluation.analyses import protocol_of_table, run_analysis

    with task_progress() as on_step:
        rows = run_analysis(
            *(analysis, inputs), out=results.out, overwrite=results.overwrite, on_step=on_step
        )
    lines = [to_table(row, nulls=True) for row in analysis.printed_rows(rows)]
    protocol = protocol_of_table(results.out, type(analysis))
    tables = [_table(lines, title=protocol and f"Protocol {protocol}")] if lines else []
    text = f"wrote {results.out}/{analysis.file}.csv and .json, {counted(len(rows), 'row')}"
    if 0 < len(lines) < len(rows):
        text += f", of which {len(lines)} {'is' if len(lines) == 1 else 'are'} shown"
    document = [to_table(row, nulls=True) for row in rows]
    print_result(document, *tables, text, as_json=results.as_json)


def _table(lines: Sequence[JsonObject], *, title: str | None = None) -> Table:
    """Return rows as a table; empty columns are omitted, and names are not wrapped."""
    table = _plain_table(title)
    keys = [key for key in lines[0] if any(line[key] is not None for line in lines)]
    for number, key in enumerate(keys):
        words = key.split("_")
        width = max(map(len, words)) if number == 0 else None
        table.add_column("\n".join(words), overflow="fold", no_wrap=number == 0, min_width=width)
    for line in lines:
        table.add_row(*(_cell(line[key]) for key in keys))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) >= 1 else decimals(value)
    return str(value)


_DEFAULTS = {"html": "report.html", "csv": "report.csv", "latex": "report.tex"}


@dataclass(frozen=True, kw_only=True)
class _ReportOptions:
    runs: Annotated[tuple[Path, ...], Form("RUNS", is_argument=True)]
    """Evaluation, analysis and run folders, or parents."""
    out: Annotated[Path | None, Form(flags="--out -o")] = None
    """Output file. [default: report.html]"""
    format: Literal["html", "csv", "latex", "markdown"] = "html"
    """The page, or only its tables."""
    figures: Path | None = None
    """Folder for every figure as PNG, SVG and PDF."""
    notes: bool = False
    """Print the notes of LaTeX tables below them."""
    title: str | None = None
    """Title of the page."""
    as_json: AsJson = False


@from_fields
def report(options: _ReportOptions) -> None:
    """Write one self-contained page from results: summary, tables, figures, provenance.

    Example: kscout report results/knee runs/greedy -o report.html --figures figures
    """
    from kscout.apps.report.build import build_report, write_report

    target = options.out or Path(_DEFAULTS.get(options.format, "report.md"))
    written = write_report(
        *(build_report(options.runs, title=options.title), target),
        form=options.format,
        figures=options.figures,
        has_notes=options.notes,
    )
    paths = [str(path) for path in written]
    print_result({"written": paths}, *(f"wrote {x}" for x in paths), as_json=options.as_json)
