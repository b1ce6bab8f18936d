"""What an evaluation folder says: tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

import numpy as np

from kscout.evaluation.paper_numbers import ARXIV, NOT_SHOWN, ORACLE_PSNR, SSIM, PaperSetting
from kscout.evaluation.summary import EvaluationFolder, PolicySummary, StepDifferences, Summary
from kscout.figures.blocks import Block, Drawing, Prose, Widget
from kscout.figures.curves import (
    draw_differences,
    draw_final_differences,
    draw_ranking,
    draw_ssim_by_step,
)
from kscout.figures.series import Curve, LineStyle
from kscout.figures.tables import Column, Measured, Row, Table
from kscout.report.words import facts, sentences

PROTOCOL_WORDS = {
    "paper": "Protocol **paper**: images are brought to the target's units with the target's own "
    "mean and deviation, which no scanner has. Masks, normalization and scores are the paper's "
    "way; whether numbers compare with the paper's depends on the data.",
    "blind": "Protocol **blind**: images are brought to the target's units with statistics of the "
    "measured data alone, as on a scanner; scores are not comparable with the paper's.",
}


def policy_table(summary: Summary, *, name: str = "policies") -> Table:
    """Return final scores of all policies and the paired comparison.

    The paper's SSIM stands beside where image size, start, number of steps and protocol are the
    paper's.
    """
    setting, ranked = summary.paper_setting, summary.ranked
    n_seeds = max(policy.n_seeds for policy in ranked)
    columns = (
        Column("policy"),
        *([Column("columns acquired", digits=2, best="min")] if summary.is_uneven else []),
        Column("SSIM", best="max"),
        Column("PSNR (dB)", digits=2, best="max"),
        Column("NMSE", best="min"),
        Column(f"SSIM minus {summary.reference}", is_signed=True),
        Column("p (corrected)", digits=3, is_probability=True),
        *(_paper_columns(setting) if setting else []),
    )
    rows = tuple(
        _policy_row(summary, policy, setting.name if setting else None) for policy in ranked
    )
    told = [
        index
        for index, column in enumerate(columns)
        if not column.is_paper or any(row.cells[index] is not None for row in rows)
    ]
    columns = tuple(columns[index] for index in told)
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in told)) for row in rows)
    paper = (
        f"What is headed paper is printed in {ARXIV}, for the same image size, start and number of "
        "steps on fastMRI data under protocol paper: not our measurement, and the data are others "
        "unless this store holds fastMRI."
        if setting
        else NOT_SHOWN
    )
    limits = sorted({f" Tests: {one.note}." for one in summary.comparisons if one.note})
    note = (
        f"Means after the last of {summary.steps} steps over slices and trajectories"
        + (
            f" and seeds; ± is the standard deviation over up to {n_seeds} seeds"
            if n_seeds > 1
            else ""
        )
        + f". Brackets: 95 % intervals with volumes as the unit. Protocol {summary.protocol}. "
        f"Best values of feasible policies are marked.{''.join(limits)} {paper}"
    )
    most = "at most " if summary.is_uneven else ""
    return Table(f"Scores after {most}{summary.steps} acquired columns", columns, rows, note, name)


def _policy_row(summary: Summary, policy: PolicySummary, setting: str | None) -> Row:
    ssim, compared = policy.final["ssim"], summary.comparison(policy.policy)
    return Row(
        (
            policy.policy,
            *([_cost_cell(policy)] if summary.is_uneven else []),
            Measured(ssim.mean, ssim.std, ssim.interval),
            Measured(policy.final["psnr"].mean),
            Measured(policy.final["nmse"].mean),
            Measured(compared.difference, interval=compared.interval) if compared else None,
            Measured(compared.p_value_corrected) if compared else None,
            *([_paper_cell(policy, setting)] if setting else []),
            *([_paper_psnr(policy, setting)] if setting in ORACLE_PSNR else []),
        ),
        is_oracle=policy.is_oracle,
    )


def _paper_columns(setting: PaperSetting) -> list[Column]:
    """Return the paper's SSIM and, where it tells that of its oracles, PSNR."""
    columns = [Column(f"paper: {setting.title}", is_paper=True)]
    if setting.name in ORACLE_PSNR:
        columns.append(Column("paper: PSNR (dB)", digits=2, is_paper=True))
    return columns


def _paper_psnr(policy: PolicySummary, setting: str | None) -> Measured | None:
    found = ORACLE_PSNR[setting or ""].get(policy.paper_method or "")
    return Measured(found) if found else None


def _cost_cell(policy: PolicySummary) -> Measured | None:
    return None if policy.n_acquired is None else Measured(policy.n_acquired)


def _paper_cell(policy: PolicySummary, setting: str) -> Measured | None:
    found = SSIM[setting].get(policy.paper_method or "")
    return Measured(*found) if found else None


def curves_of(summary: Summary, metric: str = "ssim") -> list[Curve]:
    """Return every policy's scores by step."""
    means = {one.policy: np.array(one.by_step[metric].mean) for one in summary.ranked}
    return [
        Curve(one.policy, np.array(summary.moments, float), mean, is_oracle=one.is_oracle)
        for one, mean in zip(summary.ranked, means.values(), strict=True)
    ]


def result_parts(
    summary: Summary, looks: dict[str, LineStyle], *, stem: str = ""
) -> dict[str, tuple[Block, ...]]:
    """Return what one evaluation shows, by title.

    Args:
        summary: of the evaluation.
        looks: of its policies.
        stem: that names of figures and tables begin with, where a page holds several evaluations.
    """
    told = [Prose(sentence) for sentence in sentences(summary)[1:]]
    protocol = PROTOCOL_WORDS.get(summary.protocol, f"Protocol {summary.protocol}.")
    by_step = Drawing(
        draw_ssim_by_step(curves_of(summary), styles=looks),
        f"{stem}ssim-by-step",
        f"SSIM after every acquired column, mean over {summary.n_slices} slices of the "
        f"{summary.split} split. Oracles, which look at the ground truth, are dashed. Volumes "
        "differ far more than policies do, so that intervals stand with the differences above.",
    )
    return {
        f"Difference to {summary.reference}": _differences(summary, looks, stem),
        "Scores": (
            *told,
            Widget(facts_html(facts(summary))),
            Prose(protocol),
            policy_table(summary, name=f"{stem}policies"),
        ),
        "SSIM by step": (by_step,),
        "SSIM and PSNR": _ranking(summary, looks, stem),
    }


def facts_html(told: Mapping[str, str]) -> str:
    """Return short facts by label as a grid."""
    pairs = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in told.items())
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def differences_of(summary: Summary) -> list[Curve]:
    """Return paired differences to the reference by step, best first.

    Evaluations of version 0.1 know the last step only.
    """
    oracles = {one.policy for one in summary.policies if one.is_oracle}
    curves = []
    for one in summary.comparisons:
        steps = one.by_step or StepDifferences((one.difference,), (one.interval,))
        ends = [pair for pair in steps.interval if pair is not None]
        has_band = len(ends) == len(steps.difference)
        low, high = np.array(ends).T if has_band else (None, None)
        mean = np.array(steps.difference)
        x = np.array(summary.moments[-len(mean) :], float)
        curves.append(Curve(one.policy, x, mean, low, high, one.policy in oracles))
    return curves


def _differences(summary: Summary, styles: dict[str, LineStyle], stem: str) -> tuple[Block, ...]:
    curves, reference = differences_of(summary), summary.reference
    if not curves:
        return ()
    has_bands = any(curve.low is not None for curve in curves)
    interval = (
        f" with its 95 % interval over {summary.n_volumes} volumes"
        if has_bands
        else "; with one volume there is no interval"
    )
    told = " Where an interval reaches over the line at zero, this evaluation does not tell the "
    told = f"{told}policy from {reference}." if has_bands else ""
    paired = f"each policy's SSIM minus that of {reference} on the same slices{interval}"
    at_end = Drawing(
        draw_final_differences(curves, reference=reference, styles=styles),
        f"{stem}differences",
        f"After the last of {summary.steps} steps: {paired}.{told}",
    )
    if len(curves[0].mean) < 2:
        return (at_end,)
    by_step = Drawing(
        draw_differences(curves, reference=reference, styles=styles),
        f"{stem}differences-by-step",
        f"After every acquired column: {paired}.",
    )
    return (at_end, by_step)


def _ranking(summary: Summary, styles: dict[str, LineStyle], stem: str) -> tuple[Block, ...]:
    ranked = summary.ranked
    if len(ranked) < 3:
        return ()
    figure = draw_ranking(
        [policy.policy for policy in ranked],
        np.array([policy.ssim for policy in ranked]),
        np.array([policy.final["psnr"].mean for policy in ranked]),
        oracles=[policy.policy for policy in ranked if policy.is_oracle],
        styles=styles,
    )
    caption = (
        "Final SSIM against final PSNR. The two metrics need not agree: policies are trained and "
        "oracles choose by SSIM, while PSNR favors low frequencies."
    )
    return (Drawing(figure, f"{stem}ssim-psnr", caption),)


def overview_table(evaluations: Sequence[EvaluationFolder]) -> Table:
    """Return final SSIM of every policy (rows) in every evaluation (columns), as in the paper."""
    policies: dict[str, PolicySummary] = {}
    for one in evaluations:
        for policy in one.summary.ranked:
            policies.setdefault(policy.policy, policy)
    columns = [Column("policy")]
    columns += [Column(f"{one.label} ({one.summary.protocol})", best="max") for one in evaluations]
    found = [one.summary.paper_setting for one in evaluations]
    settings = [setting for setting in dict.fromkeys(found) if setting is not None]
    columns += [Column(f"paper: {setting.title}", is_paper=True) for setting in settings]
    rows = []
    for name, policy in policies.items():
        ours = [_overview_cell(one.summary, name) for one in evaluations]
        theirs = [_paper_cell(policy, setting.name) for setting in settings]
        rows.append(Row((name, *ours, *theirs), policy.is_oracle))
    paper = (
        f"Columns of the paper are printed in {ARXIV} on fastMRI data, and are not our measurements"
        + (
            "; they belong to evaluations of the same size, budget and protocol only."
            if None in found
            else "."
        )
    )
    has_seeds = any(one.n_seeds > 1 for each in evaluations for one in each.summary.policies)
    note = (
        "Final SSIM under the protocol in brackets"
        f"{', mean ± standard deviation over seeds' if has_seeds else ''}. "
        f"{paper if settings else NOT_SHOWN}"
    )
    return Table("Final SSIM of all policies", tuple(columns), tuple(rows), note, "overview")


def _overview_cell(summary: Summary, name: str) -> Measured | None:
    found = [policy.final["ssim"] for policy in summary.policies if policy.policy == name]
    return Measured(found[0].mean, found[0].std) if found else None
