"""Line and point figures: pure functions from numbers to a matplotlib Figure.

`kscout.figures.pictures` draws pictures. Nothing is shown or saved, and no global state of
matplotlib changes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kscout.figures.series import INK, QUIET, SERIES, Curve, LineStyle, mark_oracle, styles_of
from kscout.figures.style import house_style, new_axes
from kscout.figures.tables import Column

Styles = Mapping[str, LineStyle] | None
"""Line styles by method; by default assigned from the curves."""

_SIGNED = Column("difference", is_signed=True)


def _draw(axes: Axes, curves: Sequence[Curve], styles: Mapping[str, LineStyle]) -> None:
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
        n_cols = min(3 if max(map(len, labels)) < 18 else 2, len(labels))
        figure.legend(handles, labels, loc="outside lower center", ncols=n_cols, handlelength=2.6)


def draw_ssim_by_step(curves: Sequence[Curve], *, styles: Styles = None) -> Figure:
    """Draw SSIM by acquired column, from step 0 on, with 95 % intervals over volumes as bands."""
    return _draw_by_step(curves, styles, "SSIM", "interval over volumes")


def draw_differences(curves: Sequence[Curve], *, reference: str, styles: Styles = None) -> Figure:
    """Draw the paired SSIM difference of each method to the reference, by acquired column."""
    label = f"SSIM minus that of {reference}"
    figure = _draw_by_step(curves, styles, label, "interval of the paired difference")
    figure.axes[0].axhline(0, color=INK, linewidth=1.1, zorder=2)
    return figure


def _draw_by_step(curves: Sequence[Curve], styles: Styles, label: str, bands: str) -> Figure:
    with house_style():
        figure, (axes,) = new_axes(height=4.8)
        _draw(axes, _ranked(curves), styles or styles_of(curves))
        axes.set_xlabel("acquired columns after the start")
        axes.set_ylabel(label)
        axes.margins(x=0.02)
        if any(curve.low is not None for curve in curves):
            axes.set_title(f"bands: 95 % {bands}", loc="right", fontsize=8, color=QUIET)
        _legend(figure, axes)
    return figure


def _ranked(curves: Sequence[Curve]) -> list[Curve]:
    """Return curves by their last value, best first, oracles after the rest."""
    return sorted(curves, key=lambda curve: (curve.is_oracle, -curve.mean[-1]))


def draw_final_differences(
    curves: Sequence[Curve], *, reference: str, styles: Styles = None
) -> Figure:
    """Draw the final paired difference of each method as a row: point, interval and number."""
    looks = styles or styles_of(curves)
    ranked = _ranked(curves)
    with house_style():
        figure, (axes,) = new_axes(height=1.1 + 0.3 * len(ranked))
        axes.axvline(0, color=INK, linewidth=1.1, zorder=2)
        for place, curve in enumerate(ranked):
            look, mean = looks[curve.name], float(curve.mean[-1])
            text = _SIGNED.number(mean)
            error = None
            if curve.low is not None and curve.high is not None:
                low, high = float(curve.low[-1]), float(curve.high[-1])
                error = [[max(mean - low, 0.0)], [max(high - mean, 0.0)]]
                text += f"  [{_SIGNED.number(low)}, {_SIGNED.number(high)}]"
            marker, fill = (look.marker, look.color) if look.marker else ("o", "none")
            axes.errorbar(
                mean, place, xerr=error, color=look.color, marker=marker, mfc=fill, capsize=3
            )
            at = axes.get_yaxis_transform()
            axes.text(1.02, place, text, transform=at, va="center", fontsize=8.5)
        names = [mark_oracle(one.name) if one.is_oracle else one.name for one in ranked]
        axes.set_yticks(range(len(ranked)), names)
        axes.set_ylim(len(ranked) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"SSIM minus that of {reference}")
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
    """Draw learning curves: training and validation next to each other on one scale."""
    both = {"training, while learning": training, "validation": validation}
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
        # Most values are near 1, so they are drawn at equal distances.
        axes.set_xticks(places, [f"{gamma:g}" for gamma in gammas[order]])
        axes.set_xlabel("discount γ (not to scale)")
        axes.set_ylabel("SSIM")
    return figure
