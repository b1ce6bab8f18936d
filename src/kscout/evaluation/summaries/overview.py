"""Several evaluations in one table, and one as curves."""

from collections.abc import Sequence

import numpy as np

from kscout.evaluation.summaries.paper_numbers import ARXIV, NOT_SHOWN
from kscout.evaluation.summaries.summary import EvaluationFolder, Summary, paper_cell
from kscout.figures.series import Curve
from kscout.figures.tables import Column, Measured, Row, Table


def overview_table(evaluations: Sequence[EvaluationFolder]) -> Table:
    """Return final SSIM of every policy (rows) in every evaluation (columns), as in the paper."""
    ranked = [policy for folder in evaluations for policy in folder.summary.ranked]
    policies = {policy.policy: policy for policy in reversed(ranked)}
    columns = [Column("policy")]
    columns += [Column(f"{x.label} ({x.summary.protocol})", best="max") for x in evaluations]
    paper_settings = [folder.summary.paper_setting for folder in evaluations]
    settings = [setting for setting in dict.fromkeys(paper_settings) if setting is not None]
    columns += [Column(f"paper: {setting.title}", is_paper=True) for setting in settings]
    rows = []
    for name in dict.fromkeys(policy.policy for policy in ranked):
        policy = policies[name]
        ours = [_overview_cell(folder.summary, name) for folder in evaluations]
        theirs = [paper_cell(policy, setting.name) for setting in settings]
        rows.append(Row((name, *ours, *theirs), policy.is_oracle))
    paper = (
        f"Columns of the paper are printed in {ARXIV} on fastMRI data, and are not our measurements"
        + (
            "; they belong to evaluations of the same size, budget and protocol only."
            if None in paper_settings
            else "."
        )
    )
    has_seeds = any(policy.n_seeds > 1 for policy in ranked)
    note = (
        "Final SSIM under the protocol in brackets"
        f"{', mean ± standard deviation over seeds' if has_seeds else ''}. "
        f"{paper if settings else NOT_SHOWN}"
    )
    return Table("Final SSIM of all policies", tuple(columns), tuple(rows), note, "overview")


def _overview_cell(summary: Summary, name: str) -> Measured | None:
    scores = [policy.final["ssim"] for policy in summary.policies if policy.policy == name]
    return Measured(scores[0].mean, scores[0].std) if scores else None


def curves_of(summary: Summary) -> list[Curve]:
    """Return the SSIM of every policy by step."""
    moments = np.array(summary.moments, float)
    return [
        Curve(x.policy, moments, np.array(x.by_step["ssim"].mean), is_oracle=x.is_oracle)
        for x in summary.ranked
    ]
