"""Final scores of trained policies by the discount of their estimator."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from kscout.errors import DataError
from kscout.evaluation.analyses.analysis import Analysis, Page, grouped
from kscout.evaluation.progress import OnStep
from kscout.evaluation.request import check_comparable
from kscout.evaluation.summaries.paper_numbers import ARXIV, GAMMAS, NOT_SHOWN, SSIM
from kscout.evaluation.summaries.summary import PolicySummary, Summary, Training, read_summary
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing
from kscout.figures.tables import Cell, Column, Measured, Row, Table, measured
from kscout.names import ESTIMATORS

with lazily():
    from matplotlib.figure import Figure

    from kscout.figures.curves import draw_gammas


@final
@dataclass(frozen=True)
class GammaRow:
    """Final scores of one method under one start and number of steps."""

    policy: str
    method: str
    gamma: float | None
    """None for an estimator without discount, such as the greedy one."""
    n_initial: int
    steps: int
    n_seeds: int
    ssim_mean: float
    ssim_std: float | None
    psnr_mean: float
    psnr_std: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Gammas(Analysis[GammaRow]):
    """Final scores by gamma, next to those of the greedy estimator.

    Example: kscout analyze gammas results/knee --out analyses
    """

    reads = "results"
    file = "gammas"
    title = "Discount"
    row = GammaRow

    def compute(
        self, sources: Sequence[str], *, out: Path | None = None, on_step: OnStep | None = None
    ) -> list[GammaRow]:
        return gamma_rows([read_summary(Path(path)) for path in sources])

    def figures(self, rows: Sequence[GammaRow], folder: Path) -> dict[str, Figure]:
        groups = _by_horizon(rows)
        return {
            self.file if len(groups) == 1 else f"{self.file}-{n_initial}+{steps}": _draw(group)
            for (n_initial, steps), group in groups.items()
            if any(row.gamma is not None for row in group)
        }

    @classmethod
    def blocks(cls, rows: Sequence[GammaRow], page: Page, folder: Path) -> list[Block]:
        groups = _by_horizon(rows)
        blocks: list[Block] = []
        for (n_initial, steps), group in groups.items():
            name = f"discount-{n_initial}-{steps}" if len(groups) > 1 else "discount"
            if sum(row.gamma is not None for row in group) > 1:
                caption = "Final SSIM of non-greedy policies against the discount of later rewards."
                blocks.append(Drawing(partial(_draw, group), name, caption))
            title = f"Final SSIM by discount (start {n_initial}, {steps} steps)"
            blocks.append(_table(group, page.settings.get((n_initial, steps)), title, name))
        return blocks


def gamma_rows(summaries: Sequence[Summary]) -> list[GammaRow]:
    """Return final scores of trained policies by method and gamma, those without gamma first.

    Method and gamma are those of the training. Evaluations may differ in start and steps, which
    rows contain, and in nothing else that affects scores.
    """
    check_comparable(summaries)
    rows = [
        _row(summary, entry, entry.training)
        for summary in summaries
        for entry in summary.policies
        if entry.training is not None
    ]
    if not rows:
        raise DataError(
            "no policy in these evaluations was loaded from a training run; evaluate run folders"
        )
    return sorted(rows, key=lambda row: (row.steps, -1 if row.gamma is None else row.gamma))


def _row(summary: Summary, entry: PolicySummary, training: Training) -> GammaRow:
    estimator = ESTIMATORS.entries.get(training.method)
    ssim, psnr = entry.final["ssim"], entry.final["psnr"]
    return GammaRow(
        policy=entry.policy,
        method=training.method,
        gamma=training.gamma if estimator and "gamma" in estimator.varies else None,
        n_initial=summary.n_initial,
        steps=summary.steps,
        n_seeds=entry.n_seeds,
        ssim_mean=ssim.mean,
        ssim_std=ssim.std,
        psnr_mean=psnr.mean,
        psnr_std=psnr.std,
    )


def _by_horizon(rows: Sequence[GammaRow]) -> dict[tuple[int, int], list[GammaRow]]:
    return grouped(rows, lambda row: (row.n_initial, row.steps))


def _draw(rows: Sequence[GammaRow]) -> Figure:
    discounted = [row for row in rows if row.gamma is not None]
    greedy = [row.ssim_mean for row in rows if row.method == "greedy"]
    stds = [row.ssim_std for row in discounted]
    return draw_gammas(
        np.array([row.gamma for row in discounted], dtype=np.float64),
        np.array([row.ssim_mean for row in discounted], dtype=np.float64),
        None if None in stds else np.array(stds, dtype=np.float64),
        greedy=greedy[0] if greedy else None,
    )


def _table(rows: Sequence[GammaRow], setting: str | None, title: str, name: str) -> Table:
    lines = []
    for row in rows:
        cells: tuple[Cell, ...] = (
            row.policy,
            row.method if row.gamma is None else f"γ = {row.gamma:g}",
            str(row.n_seeds),
            measured(row.ssim_mean, row.ssim_std),
            measured(row.psnr_mean, row.psnr_std),
            *([_paper_gamma(setting, row)] if setting else []),
        )
        lines.append(Row(cells))
    columns = (
        Column("policy"),
        Column("discount"),
        Column("seeds"),
        Column("SSIM", best="max"),
        Column("PSNR (dB)", digits=2, best="max"),
        *([Column(f"paper: SSIM, {setting}", is_paper=True)] if setting else []),
    )
    paper = f"The paper's column is printed in {ARXIV}, on fastMRI data." if setting else NOT_SHOWN
    return Table(title, columns, tuple(lines), f"± over seeds. {paper}", name)


def _paper_gamma(setting: str, row: GammaRow) -> Measured | None:
    """Return the paper's final SSIM for a discount, or for an estimator that has none."""
    if row.gamma is None:
        spread = SSIM[setting].get(row.method)
    else:
        spread = GAMMAS.get(setting, {}).get(row.gamma)
    return Measured(*spread) if spread else None
