"""`kscout evaluate`: policies over one split and one reconstruction, compared."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kscout.apps.cli.console import answer_console
from kscout.apps.cli.options import ResultOptions, from_fields, with_fields
from kscout.apps.cli.progress import evaluation_progress
from kscout.config.options import with_options
from kscout.evaluation.request import EvaluationSetting
from kscout.files import finite

if TYPE_CHECKING:
    from kscout.evaluation.summaries.summary import Comparison, PolicySummary, Summary


@final
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationSetting):
    """The settings of an evaluation, and what it draws."""

    masks: bool = False
    """Also write and plot the measured columns; see `analyze masks`."""


@with_fields(EvaluateOptions, required=("data", "reconstructor", "policies"))
@from_fields
def evaluate(results: ResultOptions, **fields: Any) -> None:  # noqa: ANN401 - values of the fields
    """Run policies over one split with one reconstruction, and compare them.

    Example: kscout evaluate --data stores/knee --reconstructor runs/unet --n-initial 16 --steps 16
    --policy random --policy fixed --policy greedy=runs/greedy --policy oracle
    --out results/knee
    """
    from kscout.evaluation.analyses import run_analysis
    from kscout.evaluation.analyses.masks import Masks
    from kscout.evaluation.compare import evaluate as run_evaluation

    asked = with_options(EvaluateOptions, fields)
    with evaluation_progress() as on_step:
        found = run_evaluation(
            *(asked.policies, asked.data, asked.reconstructor, asked),
            out=results.out,
            overwrite=results.overwrite,
            on_step=on_step,
        )
    if asked.masks:
        run_analysis(Masks(), [str(results.out)], out=results.out, overwrite=True)
    if results.as_json:
        typer.echo(json.dumps(finite(found.summary)))
    else:
        answer = answer_console()
        answer.print(summary_table(found.found))
        files = f"{results.out}/results.csv and {results.out}/summary.json"
        answer.print(f"wrote {files}", soft_wrap=True)


def summary_table(summary: "Summary") -> Table:
    """Return the final scores, best first, oracles marked and apart."""
    from kscout.evaluation.statistics import NO_INTERVALS

    title = (
        f"{summary.store} {summary.split}: {summary.scored_on}\n{summary.n_initial} + "
        f"{summary.steps} of {summary.n_cols} columns{_pace(summary)}, protocol {summary.protocol}"
    )
    title += f"\n{summary.choice}" if summary.choice else ""
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("policy", overflow="fold", min_width=16)
    # Headers of two lines: the table fits into 80 characters, and no number is wrapped.
    minus = f"minus\n{summary.reference}"
    names = ["SSIM", "PSNR", minus, "95 % interval", "p\n(Holm)"]
    for name in [*(["columns\nacquired"] if summary.is_uneven else []), *names]:
        table.add_column(name, justify="right", no_wrap=True)
    ranked = summary.ranked
    for entry, after in zip(ranked, [*ranked[1:], None], strict=True):
        ends = after is not None and after.is_oracle and not entry.is_oracle
        name, *scores = _cells(entry, summary.comparison(entry.policy))
        n_acquired = "" if entry.n_acquired is None else f"{entry.n_acquired:.2f}"
        cost = [n_acquired] if summary.is_uneven else []
        table.add_row(name, *cost, *scores, end_section=ends)
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


def _pace(summary: "Summary") -> str:
    """Return how the acquisitions differ from one column at a time until the budget is spent."""
    words = [" (own start)"] if summary.initial else []
    words += [" at most"] if summary.is_uneven else []
    k = summary.columns_per_step
    words += [f", {k} per step"] if k > 1 else []
    stop = summary.stop_below
    return "".join([*words, *([] if stop is None else [f", stopped below {stop:g}"])])


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
