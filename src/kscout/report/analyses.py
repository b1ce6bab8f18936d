"""Sections from what `kscout analyze` wrote: tables of rows, recognized by their columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from kscout.evaluation.paper_numbers import (
    ARXIV,
    GAMMAS,
    NOT_SHOWN,
    SNR,
    SNR_EPOCHS,
    SSIM,
    method_of,
)
from kscout.figures.blocks import Block, Drawing
from kscout.figures.curves import Curve, draw_entropies, draw_gammas, draw_snr
from kscout.figures.pictures import Example, draw_average_policy, draw_examples
from kscout.figures.style import LineStyle
from kscout.figures.tables import Cell, Column, Measured, Row, Table
from kscout.report.trainings import cost_rows_table, curve_rows_drawing

Rows = Sequence[Mapping[str, Any]]

_AVERAGE_CAPTION = (
    "Average policy: the fraction of test slices for which a column has been sampled by each "
    "step, one trajectory per slice. The white band in the middle is the start."
)
_ENTROPY_CAPTION = (
    "Entropy of the policy per step. Marginal: of the policy averaged over slices. Conditional: "
    "averaged over slices of each slice's own. Their difference, the mutual information, is how "
    "much the choice depends on the slice. Bands are one standard deviation over seeds."
)
_PANELS = {
    "mutual_information": "mutual information",
    "marginal": "marginal entropy",
    "conditional": "conditional entropy",
}
TRAINING = "Training"
_N_PANELS = 3
"""Average policies drawn side by side; more go to a row of their own."""
_N_OVERLOOKED = 10
"""Rows for single columns in the table of overlooked ones."""


@final
@dataclass(frozen=True)
class Context:
    """What sections share: looks of methods, and the paper's settings that are at hand."""

    styles: Mapping[str, LineStyle]
    settings: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    """The paper's setting by start and number of steps, as evaluations tell; None for none."""

    @property
    def setting(self) -> str | None:
        """The paper's setting, where all evaluations are of one."""
        found = set(self.settings.values())
        return next(iter(found)) if len(found) == 1 else None

    def looks_of(self, names: set[str]) -> Mapping[str, LineStyle] | None:
        """Return the page's looks where they cover all names."""
        return self.styles if names <= set(self.styles) else None


def average_policy_blocks(rows: Rows, _context: Context) -> list[Block]:
    """Draw average policies (columns policy, step, column, sampled)."""
    pictures = {}
    for name in dict.fromkeys(str(row["policy"]) for row in rows):
        own = [row for row in rows if row["policy"] == name]
        n_steps, n_cols = (1 + max(int(row[key]) for row in own) for key in ("step", "column"))
        picture = np.zeros((n_steps - 1, n_cols))
        for row in own:
            picture[int(row["step"]) - 1, int(row["column"])] = float(row["sampled"])
        pictures[name] = picture
    return draw_policies(pictures)


def draw_policies(pictures: Mapping[str, Any]) -> list[Block]:
    """Draw average policies [step, col] by name, a few side by side."""
    names = list(pictures)
    blocks: list[Block] = []
    for place in range(0, len(names), _N_PANELS):
        shown = {name: pictures[name] for name in names[place : place + _N_PANELS]}
        suffix = f"-{place // _N_PANELS + 1}" if place else ""
        name = f"average-policy{suffix}"
        # Tables hold 1 for start columns at every step, which is white already.
        figure = draw_average_policy(shown, start_columns=())
        blocks.append(Drawing(figure, name, _AVERAGE_CAPTION, is_wide=len(shown) > 1))
    return blocks


def entropy_blocks(rows: Rows, context: Context) -> list[Block]:
    """Draw entropies (columns policy, step, and mean and std of each quantity)."""
    panels: dict[str, list[Curve]] = {title: [] for title in _PANELS.values()}
    for name in dict.fromkeys(str(row["policy"]) for row in rows):
        own = sorted((row for row in rows if row["policy"] == name), key=lambda row: row["step"])
        x = np.array([float(row["step"]) for row in own])
        for key, title in _PANELS.items():
            mean = _column(own, key)
            std = _column(own, f"{key}_std")
            if mean is None:
                continue
            low, high = (None, None) if std is None else (mean - std, mean + std)
            panels[title].append(Curve(name, x, mean, low, high))
    names = {curve.name for curves in panels.values() for curve in curves}
    shown = {title: curves for title, curves in panels.items() if curves}
    figure = draw_entropies(shown, styles=context.looks_of(names))
    return [Drawing(figure, "entropies", _ENTROPY_CAPTION, is_wide=True)]


def _column(rows: Rows, key: str) -> Any:  # noqa: ANN401 - an array or None
    values = [row.get(key) for row in rows]
    return None if any(value is None for value in values) else np.array(values, dtype=np.float64)


def snr_blocks(rows: Rows, context: Context) -> list[Block]:
    """Draw and tabulate the gradient's signal-to-noise ratio by the paper's formula."""
    groups = _by_run(rows)
    curves = [_snr_curve(name, own) for name, own in groups.items()]
    methods = [
        method
        for method in dict.fromkeys(method_of(str(row["policy"])) for row in rows)
        if context.setting and method in SNR[context.setting]
    ]
    columns = [Column("epoch"), *(Column(name, digits=2) for name in groups)]
    columns += [Column(f"paper: {m}, {context.setting}", digits=2, is_paper=True) for m in methods]
    epochs = sorted({int(row["epoch"]) for row in rows})
    lines = []
    for epoch in epochs:
        cells: list[Cell] = [str(epoch)]
        cells += [_snr_cell(own, epoch) for own in groups.values()]
        cells += [_paper_snr(context.setting, method, epoch) for method in methods]
        lines.append(Row(tuple(cells)))
    n_passes = ", ".join(map(str, sorted({int(row["n_passes"]) for row in rows})))
    note = (
        "Norm of the mean gradient of the policy's last layer over the norm of its standard "
        f"error, by the paper's formula; ± over {n_passes} passes. "
        + (
            f"The paper's columns are printed in {ARXIV}, on fastMRI data."
            if methods
            else NOT_SHOWN
        )
    )
    name = "gradient-snr"
    table = Table("Gradient signal-to-noise ratio", tuple(columns), tuple(lines), note, name)
    if len(epochs) < 2:
        return [table]
    figure = draw_snr(curves, styles=context.looks_of(set(groups)))
    caption = "Signal-to-noise ratio of the gradient estimate at checkpoints of training."
    return [Drawing(figure, name, caption), table]


def _by_run(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Return rows by method, and by seed where a method has several."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(str(row["policy"]), set()).add(int(row["seed"]))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        name = str(row["policy"])
        label = f"{name}, seed {row['seed']}" if len(seeds[name]) > 1 else name
        groups.setdefault(label, []).append(row)
    return groups


def _snr_curve(name: str, rows: Rows) -> Curve:
    mean, std = _column(rows, "snr_paper"), _column(rows, "std_paper")
    x = np.array([float(row["epoch"]) for row in rows])
    return Curve(
        name, x, mean, None if std is None else mean - std, None if std is None else mean + std
    )


def _snr_cell(rows: Rows, epoch: int) -> Measured | None:
    found = [row for row in rows if int(row["epoch"]) == epoch]
    return _measured(found[0]["snr_paper"], found[0]["std_paper"]) if found else None


def _paper_snr(setting: str | None, method: str | None, epoch: int) -> Measured | None:
    if setting is None or method is None or epoch not in SNR_EPOCHS:
        return None
    return Measured(*SNR[setting][method][epoch])


def gamma_blocks(rows: Rows, context: Context) -> list[Block]:
    """Draw and tabulate final SSIM against the discount, one horizon after the other."""
    horizons = list(dict.fromkeys((row["n_initial"], row["steps"]) for row in rows))
    blocks: list[Block] = []
    for n_initial, steps in horizons:
        own = [row for row in rows if (row["n_initial"], row["steps"]) == (n_initial, steps)]
        name = f"discount-{n_initial}-{steps}" if len(horizons) > 1 else "discount"
        setting = context.settings.get((n_initial, steps))
        table = _gamma_table(own, setting, name, f"start {n_initial}, {steps} steps")
        blocks += [*_gamma_drawing(own, name), table]
    return blocks


def _gamma_table(rows: Rows, setting: str | None, name: str, horizon: str) -> Table:
    lines = []
    for row in rows:
        gamma = row["gamma"]
        cells: tuple[Cell, ...] = (
            str(row["policy"]),
            "greedy" if gamma is None else f"γ = {gamma:g}",
            str(row["n_seeds"]),
            _measured(row["ssim_mean"], row["ssim_std"]),
            _measured(row["psnr_mean"], row["psnr_std"]),
            *([_paper_gamma(setting, gamma)] if setting else []),
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
    note = f"± over seeds. {paper}"
    return Table(f"Final SSIM by discount ({horizon})", columns, tuple(lines), note, name)


def _paper_gamma(setting: str, gamma: float | None) -> Measured | None:
    """Return the paper's final SSIM for a discount, or for the greedy estimator, which has none."""
    if gamma is None:
        return Measured(*SSIM[setting]["greedy"])
    found = GAMMAS.get(setting, {}).get(float(gamma))
    return Measured(*found) if found else None


def _gamma_drawing(rows: Rows, name: str) -> list[Block]:
    discounted = [row for row in rows if row["gamma"] is not None]
    greedy = [row for row in rows if row["gamma"] is None]
    if len(discounted) < 2:
        return []
    figure = draw_gammas(
        np.array([float(row["gamma"]) for row in discounted]),
        np.array([float(row["ssim_mean"]) for row in discounted]),
        _column(discounted, "ssim_std"),
        greedy=float(greedy[0]["ssim_mean"]) if greedy else None,
    )
    caption = "Final SSIM of non-greedy policies against the discount of later rewards."
    return [Drawing(figure, name, caption)]


def _measured(value: int | float | None, spread: int | float | None) -> Measured | None:
    if value is None:
        return None
    return Measured(float(value), None if spread is None else float(spread))


def example_blocks(examples: Sequence[Example]) -> list[Block]:
    """Draw reconstruction examples: mask, reconstruction, target, absolute difference."""
    caption = (
        "Reconstructions at the end of the acquisition: measured columns, reconstruction, target "
        "and absolute difference; differences share one scale."
    )
    return [Drawing(draw_examples(examples), "examples", caption, is_wide=True)]


def overlooked_blocks(rows: Rows, _context: Context) -> list[Block]:
    """Tabulate overlooked columns: all together for every policy, then those overlooked most."""
    totals = [row for row in rows if row["column"] == "any"]
    columns = [row for row in rows if row["column"] != "any" and row["overlooked"]]
    columns.sort(key=lambda row: -float(row["overlooked"]))
    lines = tuple(
        Row(
            (
                str(row["policy"]),
                str(row["column"]),
                *(_measured(row[key], None) for key in ("best", "overlooked", "gain", "forgone")),
            )
        )
        for row in (*totals, *columns[:_N_OVERLOOKED])
    )
    shares = (Column("best", digits=3), Column("overlooked", digits=3))
    names = (Column("policy"), Column("column"), *shares, Column("gain"), Column("forgone"))
    note = (
        "Best: share of states (a slice at a step) in which no column would raise SSIM more. "
        "Overlooked: share in which the policy moreover hardly ever draws it. Over overlooked "
        "states, gain is the mean rise in SSIM, forgone by how much it exceeds what the policy can "
        "expect of its draw. Of single columns at most the "
        f"{_N_OVERLOOKED} overlooked most are listed."
    )
    return [Table("Columns that policies overlook", names, lines, note, "overlooked")]


def curve_blocks(rows: Rows, context: Context) -> list[Block]:
    """Draw learning curves (columns policy, series, epoch, mean, std)."""
    return list(curve_rows_drawing(rows, context.styles))


def cost_blocks(rows: Rows, _context: Context) -> list[Block]:
    """Tabulate what training took."""
    return [cost_rows_table(rows)]


@final
@dataclass(frozen=True)
class Kind:
    """One of the tables that `kscout analyze` writes."""

    title: str
    """The section that it belongs to."""
    needed: frozenset[str]
    """Columns that tell it from others."""
    blocks: Callable[[Rows, Context], list[Block]]


KINDS = (
    Kind(
        "Average policy",
        frozenset({"policy", "step", "column", "sampled"}),
        average_policy_blocks,
    ),
    Kind("Adaptivity", frozenset({"policy", "step", "marginal"}), entropy_blocks),
    Kind("Gradient noise", frozenset({"epoch", "snr_paper"}), snr_blocks),
    Kind("Discount", frozenset({"gamma", "ssim_mean", "psnr_mean"}), gamma_blocks),
    Kind(
        "Overlooked columns",
        frozenset({"policy", "column", "overlooked", "forgone"}),
        overlooked_blocks,
    ),
    Kind(TRAINING, frozenset({"policy", "series", "epoch", "mean"}), curve_blocks),
    Kind(TRAINING, frozenset({"policy", "time_s", "peak_memory_mib"}), cost_blocks),
)


def kind_of(rows: Rows) -> Kind | None:
    """Return what a table is by its columns, None for one that is not known."""
    keys = set(rows[0]) if rows else set()
    return next((kind for kind in KINDS if kind.needed <= keys), None)


__all__ = [
    "TRAINING",
    "Context",
    "draw_policies",
    "example_blocks",
    "kind_of",
]
