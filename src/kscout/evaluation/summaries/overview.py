"""Several evaluations in one table."""

from collections.abc import Sequence

from kscout.evaluation.summaries.paper_numbers import ARXIV, NOT_SHOWN
from kscout.evaluation.summaries.summary import EvaluationFolder, PolicySummary, Summary, paper_cell
from kscout.figures.tables import Column, Measured, Row, Table


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
        theirs = [paper_cell(policy, setting.name) for setting in settings]
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
