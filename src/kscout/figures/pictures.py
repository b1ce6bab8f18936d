"""Picture figures: average policies, masks, reconstructions, as pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kscout.figures.png import brightest_shown
from kscout.figures.series import QUIET
from kscout.figures.style import house_style, new_axes

_STRIP = 0.14
"""Height over width of a drawn mask."""

_MASK_ROWS, _MASKS_ACROSS = 60, 3
_START, _NEVER = (0.62, 0.62, 0.62), (1.0, 1.0, 1.0)


@final
@dataclass(frozen=True)
class Shown:
    """One slice under one method: the mask and the reconstruction."""

    title: str
    mask: Bool[np.ndarray, " col"]
    image: Float[np.ndarray, "row col"]
    target: Float[np.ndarray, "row col"]
    ssim: float | None = None


def draw_average_policy(policies: Mapping[str, Float[np.ndarray, "step col"]]) -> Figure:
    """Draw the fraction of slices that have acquired a column by each step."""
    n_panels = len(policies)
    with house_style():
        width = max(6.4, 3.6 * n_panels)
        figure, grid = new_axes(1, n_panels, width=width, height=3.4, share_y=True)
        for axes, (title, fraction) in zip(grid, policies.items(), strict=True):
            _show_columns(axes, title, fraction)
        grid[0].set_ylabel("acquisition step")
        _add_scale(figure, grid, grid[-1].images[0], "fraction of slices")
    return figure


def draw_masks(orders: Mapping[str, Int[np.ndarray, "_ _"]]) -> Figure:
    """Draw a panel per title: slices down, columns across, the order of acquisition as color.

    Orders are 0 for the start, 1 for the first column acquired, and negative if not measured. Of
    many slices, evenly spaced ones are drawn.
    """
    latest = max([1, *(int(order.max()) for order in orders.values())])
    scale = Normalize(1, max(latest, 2))
    n_across = min(_MASKS_ACROSS, len(orders))
    n_down = -(-len(orders) // n_across)
    with house_style():
        width, height = max(6.4, 3.4 * n_across), 2.9 * n_down
        figure, grid = new_axes(n_down, n_across, width=width, height=height)
        for axes, (title, order) in zip(grid, orders.items(), strict=False):
            shown = np.unique(
                np.linspace(0, len(order) - 1, min(len(order), _MASK_ROWS)).astype(int)
            )
            colors = colormaps["viridis_r"](scale(order[shown]))[..., :3]
            colors[order[shown] == 0], colors[order[shown] < 0] = _START, _NEVER
            _show_columns(axes, title, colors)
            axes.set_ylabel("slice")
        for axes in grid[len(orders) :]:
            axes.set_axis_off()
        bar = _add_scale(figure, grid, ScalarMappable(scale, "viridis_r"), "order of acquisition")
        bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure


def _show_columns(axes: Axes, title: str, picture: Float[np.ndarray, "row col ..."]) -> None:
    """Draw values of columns of k-space, whose rows count from 1."""
    extent = (-0.5, picture.shape[1] - 0.5, len(picture) + 0.5, 0.5)
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1, aspect="auto", extent=extent)
    axes.grid(visible=False)
    axes.set_title(title, loc="left")
    axes.set_xlabel("k-space column")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _add_scale(figure: Figure, grid: list[Axes], mappable: ScalarMappable, label: str) -> Colorbar:
    bar = figure.colorbar(mappable, ax=grid, pad=0.015, fraction=0.04)
    bar.set_label(label)
    bar.outline.set_edgecolor(QUIET)
    return bar


def draw_examples(examples: Sequence[Shown]) -> Figure:
    """Draw mask, reconstruction, target and absolute difference, one example per row.

    All differences share one scale, so that rows are comparable.
    """
    errors = [np.abs(example.image - example.target) for example in examples]
    largest = max(float(error.max()) for error in errors)
    titles = ("mask", "reconstruction", "target", "absolute difference")
    with house_style():
        figure, grid = new_axes(len(examples), 4, width=7.2, height=0.25 + 1.8 * len(examples))
        for row, (example, error) in enumerate(zip(examples, errors, strict=True)):
            cells, top = grid[4 * row : 4 * row + 4], brightest_shown(example.target)
            mask = np.broadcast_to(example.mask[None, :], example.target.shape)
            _show(cells[0], mask, 1.0)
            _show(cells[1], example.image, top)
            _show(cells[2], example.target, top)
            _show(cells[3], error, largest, "inferno")
            cells[0].set_ylabel(example.title)
            if example.ssim is not None:
                cells[1].set_xlabel(f"SSIM {example.ssim:.4f}", fontsize=8.5)
        for axes, title in zip(grid[:4], titles, strict=True):
            axes.set_title(title)
    return figure


def draw_reconstructions(
    target: Float[np.ndarray, "row col"],
    images: Mapping[str, Float[np.ndarray, "row col"]],
    *,
    ssim: Mapping[str, float],
    masks: Mapping[str, Bool[np.ndarray, " col"]],
) -> Figure:
    """Draw the target and reconstructions in a row, each above its mask and its absolute error.

    All pictures share the target's brightness, all errors one scale.
    """
    errors = {name: np.abs(image - target) for name, image in images.items()}
    largest = max(float(np.quantile(error, 0.999)) for error in errors.values())
    words = {"mask": "measured\ncolumns", "error": f"absolute error\n0 to {largest:.2g}"}
    heights = (1.0, _STRIP, 1.0)
    n_across, top = len(images) + 1, brightest_shown(target)
    with house_style():
        height = 0.7 + sum(heights) * 7.2 / n_across
        figure, grid = new_axes(3, n_across, width=7.2, height=height, height_ratios=heights)
        rows = ("image", *words)
        cells = {row: grid[n * n_across : (n + 1) * n_across] for n, row in enumerate(rows)}
        _show(cells["image"][0], target, top)
        cells["image"][0].set_title("target")
        for row, text in words.items():
            cells[row][0].set_axis_off()
            cells[row][0].text(0.95, 0.5, text, ha="right", va="center", fontsize=8.5)
        for index, (name, image) in enumerate(images.items(), start=1):
            _show(cells["image"][index], image, top)
            cells["image"][index].set_title(name)
            cells["image"][index].set_xlabel(f"SSIM {ssim[name]:.4f}", fontsize=8.5)
            n_high = max(1, round(_STRIP * len(masks[name])))
            strip = np.broadcast_to(masks[name], (n_high, len(masks[name])))
            _show(cells["mask"][index], strip, 1.0)
            # White columns would otherwise be invisible on white paper.
            cells["mask"][index].spines[:].set(visible=True, color="0.5", linewidth=0.6)
            _show(cells["error"][index], errors[name], largest, "inferno")
    return figure


def _show(
    axes: Axes, picture: Shaped[np.ndarray, "row col"], limit: float, colormap: str = "gray"
) -> None:
    # A blank picture would have an empty scale.
    axes.imshow(picture, cmap=colormap, vmin=0, vmax=limit or 1.0)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
