"""Line and point figures: pure functions from numbers to a matplotlib Figure.

Pictures are drawn in `kscout.figures.pictures`. Nothing is shown or saved, and no global state of
matplotlib changes.
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

Styles = Mapping[str, LineStyle] | None
"""Looks of methods by name; found from the curves where not given."""

_ORACLE_MARKERS = ("*", "h", "8")


def _draw(axes: Axes, curves: Sequence[Curve], styles: Mapping[str, LineStyle]) -> None:
    """Draw curves over whole numbers, with their bands."""
    for curve in curves:
        style, is_oracle = styles[curve.name], curve.is_oracle
        axes.plot(
            curve.x,
            curve.mean,
            color=style.color,
            linestyle=style.dash,
            marker=style.marker,
            markevery=max(1, len(curve.x) // 8),
            linewidth=1.5 if is_oracle else 1.9,
            label=mark_oracle(curve.name) if is_oracle else curve.name,
            zorder=2.5 if is_oracle else 3,
        )
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, color=style.color, alpha=0.1, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        n_cols = min(3, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=n_cols, handlelength=2.6)


def draw_ssim_by_step(curves: Sequence[Curve], *, styles: Styles = None) -> Figure:
    """Draw SSIM against the number of acquired columns, best method first in the legend.

    Args:
        curves: one per method, from step 0 on; bands are 95 % intervals over volumes.
        styles: the looks of the methods.
    """
    with house_style():
        figure, (axes,) = new_axes(height=4.8)
        ranked = sorted(curves, key=lambda curve: (curve.is_oracle, -curve.mean[-1]))
        _draw(axes, ranked, styles or styles_of(curves))
        axes.set_xlabel("acquired columns after the start")
        axes.set_ylabel("SSIM")
        axes.margins(x=0.02)
        if any(curve.low is not None for curve in curves):
            title = "bands: 95 % interval over volumes"
            axes.set_title(title, loc="right", fontsize=8, color=QUIET)
        _legend(figure, axes)
    return figure


def _draw_panels(
    panels: Mapping[str, Sequence[Curve]],
    styles: Styles,
    *,
    size: tuple[float, float],
    labels: tuple[str, str],
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    looks = styles or styles_of([curve for curves in panels.values() for curve in curves])
    figure, grid = new_axes(1, len(panels), width=size[0], height=size[1], share_y=share_y)
    for axes, (title, curves) in zip(grid, panels.items(), strict=True):
        _draw(axes, curves, looks)
        axes.set_title(title, loc="left")
        axes.set_xlabel(labels[0])
    grid[0].set_ylabel(labels[1])
    _legend(figure, grid[0])
    return figure, grid


def draw_entropies(panels: Mapping[str, Sequence[Curve]], *, styles: Styles = None) -> Figure:
    """Draw entropies or mutual information per step, one panel per quantity, in nats."""
    with house_style():
        size = (max(6.4, 3.1 * len(panels)), 3.5)
        labels = ("acquisition step", "nats")
        figure, grid = _draw_panels(panels, styles, size=size, labels=labels)
        for axes in grid:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return figure


def draw_curves(
    training: Sequence[Curve], validation: Sequence[Curve], *, styles: Styles = None
) -> Figure:
    """Draw learning curves: training and validation side by side on one scale."""
    both = {"training": training, "validation": validation}
    panels = {title: curves for title, curves in both.items() if curves}
    with house_style():
        size = (6.4 if len(panels) < 2 else 7.2, 3.6)
        return _draw_panels(panels, styles, size=size, labels=("epoch", "SSIM"), share_y=True)[0]


def draw_snr(measured: Sequence[Curve], *, styles: Styles = None) -> Figure:
    """Draw the signal-to-noise ratio of gradients against epoch."""
    looks = styles or styles_of(measured)
    with house_style():
        figure, (axes,) = new_axes(height=4.2)
        for curve in measured:
            style, error = (
                looks[curve.name],
                None if curve.high is None else curve.high - curve.mean,
            )
            axes.errorbar(
                curve.x,
                curve.mean,
                yerr=error,
                color=style.color,
                marker=style.marker or "o",
                capsize=3,
                label=curve.name,
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
) -> Figure:
    """Draw the final SSIM against the discount, with the greedy estimator as a line."""
    order, places = np.argsort(gammas), np.arange(len(gammas))
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
        axes.set_ylabel("SSIM")
    return figure


def draw_ranking(
    names: Sequence[str],
    ssim: Float[np.ndarray, " method"],
    psnr: Float[np.ndarray, " method"],
    *,
    oracles: Sequence[str] = (),
    styles: Styles = None,
) -> Figure:
    """Draw SSIM against PSNR, one labeled point per method."""
    looks = styles or assign_styles(list(names), set(oracles))
    with house_style():
        figure, (axes,) = new_axes(height=4.6)
        stars = iter(_ORACLE_MARKERS * len(names))
        for name, across, up in zip(names, ssim, psnr, strict=True):
            look, is_oracle = looks[name], name in oracles
            axes.plot(
                across,
                up,
                linestyle="none",
                marker=next(stars) if is_oracle else look.marker,
                markersize=9 if is_oracle else 8,
                color=look.color,
                mfc="none" if is_oracle else look.color,
                label=mark_oracle(name) if is_oracle else name,
            )
        axes.set_xlabel("SSIM")
        axes.set_ylabel("PSNR (dB)")
        axes.margins(0.08)
        _legend(figure, axes)
    return figure
