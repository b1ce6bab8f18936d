"""How SSIM and PSNR order the policies of evaluations, and where they disagree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from kscout.config import to_table
from kscout.evaluation.analyses.analysis import Analysis, grouped
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.run_names import folder_labels
from kscout.evaluation.summaries.summary import Summary, read_summary
from kscout.exports import lazily
from kscout.json_types import JsonObject

with lazily():
    from matplotlib.figure import Figure
    from scipy.stats import kendalltau

    from kscout.figures.curves import draw_ranking


@final
@dataclass(frozen=True)
class RankingRow:
    """One policy of one evaluation; rank 1 is best, and oracles are ranked with the rest."""

    results: str
    policy: str
    is_oracle: bool
    ssim: float
    psnr: float
    ssim_rank: int
    psnr_rank: int


@final
@dataclass(frozen=True, kw_only=True)
class MetricRanking(Analysis[RankingRow]):
    """How SSIM and PSNR order the policies of evaluations, and where they disagree.

    Example: kscout analyze ranking results/knee --out analyses
    """

    reads = "results"
    file = "ranking"
    row = RankingRow
    spans_horizons = True

    def compute(
        self, sources: Sequence[str], *, out: Path | None = None, on_step: OnStep | None = None
    ) -> list[RankingRow]:
        labels = folder_labels([Path(x).resolve() for x in sources])
        return [
            row
            for path, label in labels.items()
            for row in rank_policies(label, read_summary(path))
        ]

    def figures(self, rows: Sequence[RankingRow], folder: Path) -> dict[str, Figure]:
        groups = grouped(rows, lambda row: row.results)
        names = {label: f"{self.file}-{label.replace('/', '-')}" for label in groups}
        return {
            names[label] if len(groups) > 1 else self.file: draw_ranking(
                [row.policy for row in group],
                np.array([row.ssim for row in group]),
                np.array([row.psnr for row in group]),
                oracles=[row.policy for row in group if row.is_oracle],
            )
            for label, group in groups.items()
        }

    @classmethod
    def document(cls, rows: Sequence[RankingRow]) -> JsonObject:
        """Return by evaluation its rows, how far the two orders agree, and where they do not.

        `kendall_tau` is over all policies and `kendall_tau_feasible` without oracles, None where
        not defined; `disagreements` are pairs, the one with the higher SSIM first.
        """
        return {
            label: {
                "rows": [
                    {k: v for k, v in to_table(row).items() if k != "results"} for row in group
                ],
                "kendall_tau": kendall_tau(group),
                "kendall_tau_feasible": kendall_tau([row for row in group if not row.is_oracle]),
                "disagreements": [
                    [first.policy, second.policy]
                    for i, first in enumerate(group)
                    for second in group[i + 1 :]
                    if first.ssim > second.ssim and first.psnr < second.psnr
                ],
            }
            for label, group in grouped(rows, lambda row: row.results).items()
        }

    @classmethod
    def parse(cls, document: Any) -> list[RankingRow]:  # noqa: ANN401 - any JSON value
        return super().parse(
            [
                {"results": label, **row}
                for label, table in document.items()
                for row in table["rows"]
            ]
        )


def rank_policies(label: str, summary: Summary) -> list[RankingRow]:
    """Rank the policies of a summary by both metrics, best SSIM first."""
    scores = {
        metric: [entry.final[metric].mean for entry in summary.policies]
        for metric in ("ssim", "psnr")
    }
    ranks = {
        metric: [1 + sum(other > value for other in values) for value in values]
        for metric, values in scores.items()
    }
    rows = [
        RankingRow(label, entry.policy, entry.is_oracle, *values)
        for entry, *values in zip(summary.policies, *scores.values(), *ranks.values(), strict=True)
    ]
    return sorted(rows, key=lambda row: row.ssim_rank)


def kendall_tau(rows: Sequence[RankingRow]) -> float | None:
    """Return Kendall's tau-b of SSIM and PSNR; None where it is not defined."""
    if len(rows) < 2:
        return None
    tau = float(kendalltau([row.ssim for row in rows], [row.psnr for row in rows]).statistic)
    return None if np.isnan(tau) else tau
