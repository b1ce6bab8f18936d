"""Line and point figures: pure functions from numbers to a matplotlib Figure.

Pictures are drawn in `kscout.figures.pictures`. Nothing is shown or saved, and no global
state of matplotlib changes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kscout.figures.series import (
    QUIET,
    SERIES,
    Curve,
    LineStyle,
    assign_styles,
    mark_oracle,
    styles_of,
)
from kscout.figures.style import house_style, new_axes

_ORACLE_MARKERS = ("*", "h", "8")


def _draw_curve(axes: Axes, curve: Curve, style: LineStyle, *, label: str | None = None) -> None:
    n_between = max(1, len(curve.x) // 8)
    axes.plot(
        curve.x,
        curve.mean,
        color=style.color,
        linestyle=style.dash,
        marker=style.marker,
        markevery=n_between,
        linewidth=1.5 if curve.is_oracle else 1.9,
        label=label or curve.name,
        zorder=2.5 if curve.is_oracle else 3,
    )
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=style.color, alpha=0.1, lw=0)


def _legend(figure: Figure, axes: Axes, n_cols: int = 3) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(n_cols, len(labels)),
            handlelength=2.6,
        )


def draw_ssim_by_step(
    curves: Sequence[Curve],
    *,
    styles: Mapping[str, LineStyle] | None = None,
    metric: str = "SSIM",
    unit: str = "",
    band: str = "95 % interval over volumes",
) -> Figure:
    """Draw a metric against the number of acquired columns, best method first in the legend.

    Args:
        curves: one per method, from step 0 on.
        styles: the looks of the methods; found from the curves where not given.
        metric: what is drawn.
        unit: of the metric, e.g. dB.
        band: what the shaded bands are, for the axis note.
    """
    looks = styles or styles_of(curves)
    with house_style():
        figure, (axes,) = new_axes(height=4.8)
        ranked = sorted(curves, key=lambda curve: (curve.is_oracle, -curve.mean[-1]))
        for curve in ranked:
            label = mark_oracle(curve.name) if curve.is_oracle else curve.name
            _draw_curve(axes, curve, looks[curve.name], label=label)
        axes.set_xlabel("acquired columns after the start")
        axes.set_ylabel(f"{metric} ({unit})" if unit else metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(x=0.02)
        if any(curve.low is not None for curve in curves):
            axes.set_title(f"bands: {band}", loc="right", fontsize=8, color=QUIET)
        _legend(figure, axes)
    return figure


def draw_entropies(
    panels: Mapping[str, Sequence[Curve]], *, styles: Mapping[str, LineStyle] | None = None
) -> Figure:
    """Draw entropies or mutual information per step, one panel per quantity, in nats."""
    looks = styles or styles_of([curve for curves in panels.values() for curve in curves])
    with house_style():
        figure, grid = new_axes(1, len(panels), width=max(6.4, 3.1 * len(panels)), height=3.5)
        for axes, (title, curves) in zip(grid, panels.items(), strict=True):
            for curve in curves:
                _draw_curve(axes, curve, looks[curve.name])
            axes.set_title(title, loc="left")
            axes.set_xlabel("acquisition step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        grid[0].set_ylabel("nats")
        _legend(figure, grid[0])
    return figure


def draw_curves(
    training: Sequence[Curve],
    validation: Sequence[Curve],
    *,
    styles: Mapping[str, LineStyle] | None = None,
    metric: str = "SSIM",
) -> Figure:
    """Draw learning curves: training and validation side by side on one scale."""
    looks = styles or styles_of([*training, *validation])
    panels = {
        title: curves
        for title, curves in (("training", training), ("validation", validation))
        if curves
    }
    with house_style():
        figure, grid = new_axes(
            1, len(panels), height=3.6, width=6.4 if len(panels) < 2 else 7.2, share_y=True
        )
        for axes, (title, curves) in zip(grid, panels.items(), strict=True):
            for curve in curves:
                _draw_curve(axes, curve, looks[curve.name])
            axes.set_title(title, loc="left")
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        grid[0].set_ylabel(metric)
        _legend(figure, grid[0])
    return figure


def draw_snr(
    measured: Sequence[Curve],
    *,
    paper: Sequence[Curve] = (),
    styles: Mapping[str, LineStyle] | None = None,
) -> Figure:
    """Draw the signal-to-noise ratio of gradients against epoch; the paper's are thin and open."""
    looks = styles or styles_of(measured)
    with house_style():
        figure, (axes,) = new_axes(height=4.2)
        for curve in measured:
            style = looks[curve.name]
            error = None if curve.high is None else curve.high - curve.mean
            axes.errorbar(
                curve.x,
                curve.mean,
                yerr=error,
                color=style.color,
                marker=style.marker or "o",
                capsize=3,
                label=curve.name,
            )
        for curve in paper:
            axes.plot(
                curve.x,
                curve.mean,
                color=QUIET,
                linestyle=":",
                marker="o",
                mfc="none",
                linewidth=1.0,
                label=f"{curve.name} (paper, fastMRI)",
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel("gradient signal-to-noise ratio")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(figure, axes)
    return figure


def draw_gammas(
    gammas: Float[np.ndarray, " gamma"],
    mean: Float[np.ndarray, " gamma"],
    std: Float[np.ndarray, " gamma"] | None = None,
    *,
    greedy: float | None = None,
    metric: str = "SSIM",
) -> Figure:
    """Draw the final score against the discount, with the greedy estimator as a line."""
    order = np.argsort(gammas)
    places = np.arange(len(gammas))
    with house_style():
        figure, (axes,) = new_axes(height=3.4)
        axes.errorbar(
            places,
            mean[order],
            yerr=None if std is None else std[order],
            color=SERIES[0],
            marker="o",
            capsize=3,
            label="non-greedy",
        )
        if greedy is not None:
            axes.axhline(greedy, color=SERIES[1], linestyle="--", label="greedy")
            _legend(figure, axes)
        # The values crowd near 1, so they stand at equal distances.
        axes.set_xticks(places, [f"{gamma:g}" for gamma in gammas[order]])
        axes.set_xlabel("discount γ (not to scale)")
        axes.set_ylabel(metric)
    return figure


def draw_ranking(
    names: Sequence[str],
    ssim: Float[np.ndarray, " method"],
    psnr: Float[np.ndarray, " method"],
    *,
    oracles: Sequence[str] = (),
    styles: Mapping[str, LineStyle] | None = None,
) -> Figure:
    """Draw SSIM against PSNR, one labeled point per method."""
    looks = styles or assign_styles(list(names), set(oracles))
    with house_style():
        figure, (axes,) = new_axes(height=4.6)
        stars = iter(_ORACLE_MARKERS * len(names))
        for name, across, up in zip(names, ssim, psnr, strict=True):
            style, is_oracle = looks[name], name in oracles
            axes.plot(
                across,
                up,
                linestyle="none",
                marker=next(stars) if is_oracle else style.marker,
                markersize=9 if is_oracle else 8,
                color=style.color,
                mfc="none" if is_oracle else style.color,
                label=mark_oracle(name) if is_oracle else name,
            )
        axes.set_xlabel("SSIM")
        axes.set_ylabel("PSNR (dB)")
        axes.margins(0.08)
        _legend(figure, axes)
    return figure


__all__ = [
    "draw_curves",
    "draw_entropies",
    "draw_gammas",
    "draw_ranking",
    "draw_snr",
    "draw_ssim_by_step",
]
