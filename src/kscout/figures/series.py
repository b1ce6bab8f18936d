"""Named series of numbers, each with the same line style in all figures of a page.

Colors are distinguishable with any color vision; marker and dash duplicate the color.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float

INK, QUIET, GRID, PAPER = "#1b1f24", "#67707a", "#d9dee3", "#fdfdfe"
# After Okabe and Ito, with one blue only; a test measures distances under color blindness.
SERIES = ("#0072b2", "#c94f00", "#00a078", "#d486b2", "#dfa300", "#7a1650", "#3f4f10", "#68707a")
_MARKERS = "osD^vPXp"
Dash = str | tuple[int, tuple[float, ...]]
"""A line style of matplotlib."""
_ORACLE_DASHES: tuple[Dash, ...] = ("--", "-.", (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))


@final
@dataclass(frozen=True)
class LineStyle:
    """Line style of a method in all figures of a report."""

    color: str
    dash: Dash
    marker: str | None


@final
@dataclass(frozen=True)
class Curve:
    """Values of one method over steps or epochs, with an optional band of uncertainty."""

    name: str
    x: Float[np.ndarray, " point"]
    mean: Float[np.ndarray, " point"]
    low: Float[np.ndarray, " point"] | None = None
    high: Float[np.ndarray, " point"] | None = None
    is_oracle: bool = False

    @classmethod
    def with_spread(
        cls,
        name: str,
        x: Sequence[int | float],
        mean: Sequence[int | float | None],
        std: Sequence[int | float | None],
    ) -> "Curve":
        """Return a curve with a band of one standard deviation, if known at every point."""
        middle = np.array(mean, dtype=np.float64)
        if any(value is None for value in std):
            return cls(name, np.array(x, dtype=np.float64), middle)
        spread = np.array(std, dtype=np.float64)
        return cls(name, np.array(x, dtype=np.float64), middle, middle - spread, middle + spread)


def styles_of(curves: Sequence[Curve]) -> dict[str, LineStyle]:
    """Assign a line style to every method: oracles dashed in black, the others solid in color."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    oracles = {curve.name for curve in curves if curve.is_oracle}
    dashes, n_colors = itertools.cycle(_ORACLE_DASHES), len(SERIES)
    styles = {name: LineStyle(INK, next(dashes), None) for name in names if name in oracles}
    for place, name in enumerate(name for name in names if name not in oracles):
        # If there are more methods than colors, shifted markers distinguish them.
        marker = _MARKERS[(place + place // n_colors) % len(_MARKERS)]
        styles[name] = LineStyle(SERIES[place % n_colors], "-", marker)
    return styles


def mark_oracle(name: str) -> str:
    """Return a name that marks an oracle."""
    return name if "oracle" in name.lower() else f"{name} (oracle)"
