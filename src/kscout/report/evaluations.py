"""What an evaluation folder says: tables and figures."""

from collections.abc import Sequence

import numpy as np

from kscout.evaluation.paper_numbers import ARXIV, NOT_SHOWN, SSIM
from kscout.evaluation.summary import EvaluationFolder, PolicySummary, Summary
from kscout.figures.blocks import Block, Drawing, Prose, Section, link_name
from kscout.figures.curves import draw_ranking, draw_ssim_by_step
from kscout.figures.series import Curve, LineStyle, styles_of
from kscout.figures.tables import Column, Measured, Row, Table

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
        Column("SSIM", best="max"),
        Column("PSNR (dB)", digits=2, best="max"),
        Column("NMSE", best="min"),
        Column(f"SSIM minus {summary.reference}", is_signed=True),
        Column("p (corrected)", digits=3, is_probability=True),
        *([Column(f"paper: {setting.title}", is_paper=True)] if setting else []),
    )
    rows = tuple(
        _policy_row(summary, policy, setting.name if setting else None) for policy in ranked
    )
    paper = (
        f"The last column is printed in {ARXIV}, for the same image size, start and number of "
        "steps on fastMRI data under protocol paper: not our measurement, and the data are others "
        "unless this store holds fastMRI."
        if setting
        else NOT_SHOWN
    )
    note = (
        f"Means after the last of {summary.steps} steps over slices, trajectories and seeds"
        + (f"; ± is the standard deviation over up to {n_seeds} seeds" if n_seeds > 1 else "")
        + f". Brackets: 95 % intervals with volumes as the unit. Protocol {summary.protocol}. "
        f"Best values of feasible policies are marked. {paper}"
    )
    return Table(f"Scores after {summary.steps} acquired columns", columns, rows, note, name)


def _policy_row(summary: Summary, policy: PolicySummary, setting: str | None) -> Row:
    ssim, compared = policy.final["ssim"], summary.comparison(policy.policy)
    return Row(
        (
            policy.policy,
            Measured(ssim.mean, ssim.std, ssim.interval),
            Measured(policy.final["psnr"].mean),
            Measured(policy.final["nmse"].mean),
            Measured(compared.difference, interval=compared.interval) if compared else None,
            Measured(compared.p_value_corrected) if compared else None,
            *([_paper_cell(policy, setting)] if setting else []),
        ),
        is_oracle=policy.is_oracle,
    )


def _paper_cell(policy: PolicySummary, setting: str) -> Measured | None:
    found = SSIM[setting].get(policy.paper_method or "")
    return Measured(*found) if found else None


def curves_of(summary: Summary, metric: str = "ssim") -> list[Curve]:
    """Return every policy's scores by step, with intervals over volumes where there are any."""
    curves = []
    for policy in summary.ranked:
        steps = policy.by_step[metric]
        intervals = [one for one in steps.interval if one is not None]
        has_band = len(intervals) == len(steps.mean)
        low, high = np.array(intervals).T if has_band else (None, None)
        x, mean = np.arange(len(steps.mean), dtype=np.float64), np.array(steps.mean)
        curves.append(Curve(policy.policy, x, mean, low, high, policy.is_oracle))
    return curves


def result_sections(
    evaluation: EvaluationFolder, *, styles: dict[str, LineStyle] | None = None
) -> list[Section]:
    """Return the sections of a report on one evaluation."""
    blocks = _blocks(evaluation, styles)
    return [Section(title, found) for title, found in blocks.items()]


def result_section(
    evaluation: EvaluationFolder, *, styles: dict[str, LineStyle] | None = None
) -> Section:
    """Return all that one of several evaluations shows as one section."""
    stem = f"{link_name(evaluation.label)}-"
    parts = _blocks(evaluation, styles, stem).values()
    return Section(evaluation.label, tuple(block for part in parts for block in part))


def _blocks(
    evaluation: EvaluationFolder, styles: dict[str, LineStyle] | None, stem: str = ""
) -> dict[str, tuple[Block, ...]]:
    summary = evaluation.summary
    curves = curves_of(summary)
    looks = styles or styles_of(curves)
    protocol = PROTOCOL_WORDS.get(summary.protocol, f"Protocol {summary.protocol}.")
    by_step = Drawing(
        draw_ssim_by_step(curves, styles=looks),
        f"{stem}ssim-by-step",
        "SSIM after every acquired column, mean over test slices. Oracles, which look at the "
        "ground truth, are dashed.",
    )
    return {
        "Scores": (Prose(protocol), policy_table(summary, name=f"{stem}policies")),
        "SSIM by step": (by_step,),
        "SSIM and PSNR": _ranking(summary, looks, stem),
    }


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
    note = (
        "Final SSIM under the protocol in brackets, mean ± standard deviation over seeds. "
        f"{paper if settings else NOT_SHOWN}"
    )
    return Table("Final SSIM of all policies", tuple(columns), tuple(rows), note, "overview")


def _overview_cell(summary: Summary, name: str) -> Measured | None:
    found = [policy.final["ssim"] for policy in summary.policies if policy.policy == name]
    return Measured(found[0].mean, found[0].std) if found else None
