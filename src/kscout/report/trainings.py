"""What run folders say about training: learning curves and cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kscout.evaluation.cost import cost_table
from kscout.evaluation.curves import curve_rows, learning_curves
from kscout.evaluation.paper_numbers import ARXIV, COST_DAYS
from kscout.figures.blocks import Block, Drawing, Section
from kscout.figures.curves import Curve, draw_curves
from kscout.figures.style import LineStyle
from kscout.figures.tables import Column, Measured, Row, Table
from kscout.runs import RunRecord

Rows = Sequence[Mapping[str, Any]]


def training_section(
    runs: Sequence[RunRecord], *, styles: Mapping[str, LineStyle] | None = None
) -> Section:
    """Return learning curves and the cost table; no blocks where no run has logged an epoch."""
    begun = [run for run in runs if run.metrics]
    if not begun:
        return Section("Training", ())
    policies = [run.path for run in begun if run.kind == "policy"]
    blocks: list[Block] = [*curve_drawing(policies, styles), cost_table_of([r.path for r in begun])]
    return Section("Training", tuple(blocks))


def curve_drawing(
    runs: Sequence[Path], styles: Mapping[str, LineStyle] | None = None
) -> list[Drawing]:
    """Return the learning curves of policy runs; none where no run has two epochs."""
    return curve_rows_drawing(curve_rows(learning_curves(runs)), styles) if runs else []


def curve_rows_drawing(rows: Rows, styles: Mapping[str, LineStyle] | None = None) -> list[Drawing]:
    """Draw the rows of `kscout analyze curves`."""
    panels: dict[str, list[Curve]] = {"train_ssim": [], "val_ssim": []}
    for series, curves in panels.items():
        for name in dict.fromkeys(row["policy"] for row in rows if row["series"] == series):
            own = [row for row in rows if (row["policy"], row["series"]) == (name, series)]
            mean = np.array([float(row["mean"]) for row in own])
            stds = [row["std"] for row in own]
            band = None if None in stds else np.array(stds, dtype=np.float64)
            x = np.array([float(row["epoch"]) for row in own])
            low, high = (None, None) if band is None else (mean - band, mean + band)
            curves.append(Curve(name, x, mean, low, high))
    drawn = [curve for curves in panels.values() for curve in curves]
    if all(len(curve.x) < 2 for curve in drawn):
        return []
    looks = styles if styles and {curve.name for curve in drawn} <= set(styles) else None
    caption = (
        "Learning curves: mean SSIM per epoch on training and on validation slices, one sampled "
        "trajectory each; bands are one standard deviation over seeds."
    )
    figure = draw_curves(panels["train_ssim"], panels["val_ssim"], styles=looks)
    return [Drawing(figure, "learning-curves", caption, is_wide=True)]


def cost_table_of(runs: Sequence[Path]) -> Table:
    """Return what training took per method, with the paper's days beside in the note."""
    return cost_rows_table(cost_table(runs))


def cost_rows_table(rows: Rows) -> Table:
    """Lay out the rows of `kscout analyze cost`."""
    columns = (
        Column("run"),
        Column("kind"),
        Column("seeds"),
        Column("epochs"),
        Column("time (s)", digits=1),
        Column("per epoch (s)", digits=2),
        Column("peak memory (MiB)", digits=0),
        Column("reconstructions per s", digits=0),
        Column("device"),
    )
    lines = tuple(
        Row(
            (
                str(row["policy"]),
                str(row["kind"]),
                str(row["n_seeds"]),
                str(row["n_epochs"]),
                _number(row["time_s"]),
                _number(row["time_per_epoch_s"]),
                _number(row["peak_memory_mib"]),
                _number(row["reconstructions_per_s"]),
                str(row["device"]),
            )
        )
        for row in rows
    )
    greedy, non_greedy = COST_DAYS["knee-base"]["greedy"], COST_DAYS["knee-base"]["ngreedy"]
    longest = COST_DAYS["brain-long"]["ngreedy"]
    note = (
        "Time is the mean over seeds of all epochs, validation included. The paper "
        f"({ARXIV}) gives about {greedy[0]} days for greedy and {non_greedy[0]} for non-greedy "
        f"training on fastMRI knees (base) on one GTX 1080 Ti, and up to {longest[0]} days on "
        f"{longest[1]} (brain, long): other data, size and hardware."
    )
    return Table("What training took", columns, lines, note, "training")


def _number(value: int | float | None) -> Measured | None:
    return None if value is None else Measured(float(value))


__all__ = [
    "cost_rows_table",
    "cost_table_of",
    "curve_drawing",
    "curve_rows_drawing",
    "training_section",
]
