"""Masks as pictures: which columns were measured, and how early."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kscout.figures.series import QUIET
from kscout.figures.style import house_style, new_axes

_N_ROWS = 60
_N_ACROSS = 3
_START, _NEVER = (0.62, 0.62, 0.62), (1.0, 1.0, 1.0)


def draw_masks(orders: Mapping[str, Int[np.ndarray, "_ _"]]) -> Figure:
    """Draw a panel per title: slices down, columns across, the order of acquisition as color.

    Args:
        orders: by title, per slice and column: 0 for the start, 1 for the first column acquired,
            negative where it was not measured. Of many slices some are drawn, evenly spread.
    """
    latest = max([1, *(int(order.max()) for order in orders.values())])
    scale = Normalize(1, max(latest, 2))
    n_across = min(_N_ACROSS, len(orders))
    n_down = -(-len(orders) // n_across)
    with house_style():
        width, height = max(6.4, 3.4 * n_across), 2.9 * n_down
        figure, grid = new_axes(n_down, n_across, width=width, height=height)
        for axes, (title, order) in zip(grid, orders.items(), strict=False):
            shown = np.unique(np.linspace(0, len(order) - 1, min(len(order), _N_ROWS)).astype(int))
            colors = colormaps["viridis_r"](scale(order[shown]))[..., :3]
            colors[order[shown] == 0], colors[order[shown] < 0] = _START, _NEVER
            extent = (-0.5, order.shape[1] - 0.5, len(shown) + 0.5, 0.5)
            axes.imshow(colors, aspect="auto", extent=extent)
            axes.set_title(title, loc="left")
            axes.set_xlabel("k-space column")
            axes.set_ylabel("slice")
            axes.grid(visible=False)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        for axes in grid[len(orders) :]:
            axes.set_axis_off()
        mappable = ScalarMappable(scale, "viridis_r")
        bar = figure.colorbar(mappable, ax=grid, pad=0.015, fraction=0.04)
        bar.set_label("order of acquisition")
        bar.outline.set_edgecolor(QUIET)
        bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure
