"""Learning curves: training and validation SSIM per epoch, over the seeds of a method."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final, get_args

import numpy as np

from kscout.errors import RunError
from kscout.evaluation.analyses.analysis import Analysis, Page, ReportInputs, grouped
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.run_names import grouped_runs
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing
from kscout.figures.series import Curve
from kscout.runs import RunRecord, read_run

with lazily():
    from matplotlib.figure import Figure

    from kscout.figures.curves import draw_curves

Series = Literal["train_ssim", "val_ssim"]
SERIES: tuple[Series, ...] = get_args(Series)
"""Keys of `metrics.jsonl`; reconstructors have the second one only."""
_CAPTION = (
    "Learning curves: mean final SSIM per epoch; bands are one standard deviation over seeds. "
    "Training: of the acquisitions that the epoch learned from, while the weights changed (one per "
    "slice for greedy, all q trajectories for non-greedy); the paper computes it apart, after the "
    "epoch. Validation: one acquisition per held-out slice after the epoch, the same draws always."
)
_OTHERS = {
    "joint": "Learning curves of networks and policies that learn together: mean final SSIM on "
    "held-out slices per epoch, acquired and reconstructed by the pair of then",
    "reconstructor": "Learning curves of reconstructions: mean SSIM on held-out slices per epoch, "
    "from masks that stay the same",
}
"""Captions of runs that train more than a policy, by kind."""


@final
@dataclass(frozen=True)
class CurveRow:
    """One series of a method at an epoch that all its seeds have reached."""

    policy: str
    series: Series
    epoch: int
    mean: float
    std: float | None
    """Over seeds (ddof 1)."""
    n_seeds: int


@final
@dataclass(frozen=True, kw_only=True)
class Curves(Analysis[CurveRow]):
    """Learning curves: training and validation SSIM per epoch, over seeds.

    Example: kscout analyze curves runs/greedy --out analyses
    """

    reads = "runs"
    file = "curves"
    title = "Training"
    row = CurveRow

    def compute(
        self, sources: Sequence[str], *, out: Path | None = None, on_step: OnStep | None = None
    ) -> list[CurveRow]:
        rows = [
            row
            for name, records in grouped_runs([Path(x) for x in sources]).items()
            for series in SERIES
            for row in _rows(name, series, records)
        ]
        if not rows:
            raise RunError(f"{sources[0]} has logged no epoch yet; wait for its first one")
        return rows

    def figures(self, rows: Sequence[CurveRow], folder: Path) -> dict[str, Figure]:
        return {self.file: draw_curves(*_panels(rows))}

    @classmethod
    def printed_rows(cls, rows: Sequence[CurveRow]) -> Sequence[CurveRow]:
        return ()

    @classmethod
    def blocks(cls, rows: Sequence[CurveRow], page: Page, folder: Path) -> list[Block]:
        return _blocks(rows, page)

    @classmethod
    def blocks_without_table(cls, inputs: ReportInputs, page: Page) -> list[Block]:
        runs = grouped([str(path) for path in inputs.runs], lambda path: read_run(path).kind)
        return [
            block
            for kind in ("policy", *_OTHERS)
            if kind in runs
            for block in _blocks(cls().compute(runs[kind]), page, kind)
        ]


def _blocks(rows: Sequence[CurveRow], page: Page, kind: str = "policy") -> list[Block]:
    panels = _panels(rows)
    if all(len(curve.x) < 2 for curves in panels for curve in curves):
        return []
    figure = partial(draw_curves, *panels, styles=page.looks_of({row.policy for row in rows}))
    if kind not in _OTHERS:
        return [Drawing(figure, "learning-curves", _CAPTION, is_wide=True)]
    caption = f"{_OTHERS[kind]}; bands are one standard deviation over seeds."
    return [Drawing(figure, f"learning-curves-{kind}", caption)]


def _rows(name: str, series: Series, records: Sequence[RunRecord]) -> list[CurveRow]:
    logged = [
        {line["epoch"]: float(line[series]) for line in record.metrics if series in line}
        for record in records
    ]
    epochs = sorted(set.intersection(*(set(values) for values in logged)))
    values = np.array([[line[epoch] for epoch in epochs] for line in logged])
    n_seeds = len(values)
    stds = values.std(axis=0, ddof=1).tolist() if n_seeds > 1 else [None] * len(epochs)
    return [
        CurveRow(name, series, *point, n_seeds)
        for point in zip(epochs, values.mean(axis=0).tolist(), stds, strict=True)
    ]


def _panels(rows: Sequence[CurveRow]) -> tuple[list[Curve], list[Curve]]:
    panels: dict[str, list[Curve]] = {series: [] for series in SERIES}
    for (series, name), group in grouped(rows, lambda row: (row.series, row.policy)).items():
        points = zip(*((row.epoch, row.mean, row.std) for row in group), strict=True)
        panels[series].append(Curve.with_spread(name, *points))
    train, val = panels.values()
    return train, val
