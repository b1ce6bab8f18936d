"""Scores of evaluations as tables: of one with its comparison, of several side by side."""

from collections.abc import Sequence
from dataclasses import replace

from kscout.evaluation.statistics import IN_BRACKETS, NO_INTERVALS
from kscout.evaluation.summaries.paper_numbers import (
    ARXIV,
    NOT_SHOWN,
    ORACLE_PSNR,
    SSIM,
    PaperSetting,
)
from kscout.evaluation.summaries.summary import EvaluationFolder, PolicySummary, Summary
from kscout.figures.tables import Column, Measured, Row, Table


def policy_table(summary: Summary, *, name: str = "policies") -> Table:
    """Return final scores of all policies and the paired comparison.

    The paper's SSIM stands beside where image size, start, number of steps and protocol are the
    paper's.
    """
    setting, ranked = summary.paper_setting, summary.ranked
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
    most = "at most " if summary.is_uneven else ""
    title = f"Scores after {most}{summary.steps} acquired columns"
    return Table(title, columns, rows, _note(summary), name)


def _note(summary: Summary) -> str:
    """Say what the numbers of a table of policies are."""
    n_seeds = max(policy.n_seeds for policy in summary.ranked)
    paper = (
        f"What is headed paper is printed in {ARXIV}, for the same image size, start and number of "
        "steps on fastMRI data under protocol paper: not our measurement, and the data are others "
        "unless this store holds fastMRI."
        if summary.paper_setting
        else NOT_SHOWN
    )
    limits = sorted({f" Tests: {one.note}." for one in summary.comparisons if one.note})
    seeds = f" and seeds; ± is the standard deviation over up to {n_seeds} seeds"
    return (
        f"Means after the last of {summary.steps} steps over slices and trajectories"
        f"{seeds if n_seeds > 1 else ''}. "
        f"{IN_BRACKETS if summary.has_intervals else NO_INTERVALS} Protocol {summary.protocol}. "
        f"Best values of feasible policies are marked.{''.join(limits)} {paper}"
    )


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
