"""Named series of numbers, and the look that each keeps in every figure of a page.

Colors can be told apart with any color vision; marker and dash repeat what the color says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float

INK, QUIET, GRID, PAPER = "#1b1f24", "#67707a", "#d9dee3", "#fdfdfe"
# After Okabe and Ito, with one blue only; a test measures them as color-blind eyes see them.
SERIES = ("#0072b2", "#c94f00", "#00a078", "#d486b2", "#dfa300", "#7a1650", "#3f4f10", "#68707a")
_MARKERS = "osD^vPXp"
_ORACLE_DASHES: tuple[Any, ...] = ("--", "-.", (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5, 1, 1.5)))


@final
@dataclass(frozen=True)
class LineStyle:
    """How a method is drawn, everywhere in a report."""

    color: str
    dash: Any
    marker: str | None


@final
@dataclass(frozen=True)
class Curve:
    """One method's values over steps or epochs, with a band where its uncertainty is known."""

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
        """Return a curve with a band of one deviation, where every point has one."""
        middle = np.array(mean, dtype=np.float64)
        if any(value is None for value in std):
            return cls(name, np.array(x, dtype=np.float64), middle)
        spread = np.array(std, dtype=np.float64)
        return cls(name, np.array(x, dtype=np.float64), middle, middle - spread, middle + spread)


def assign_styles(names: list[str], oracles: set[str]) -> dict[str, LineStyle]:
    """Give every method its look: oracles dashed in ink, the others solid in color."""
    styles: dict[str, LineStyle] = {}
    n_methods = n_oracles = 0
    for name in names:
        if name in oracles:
            styles[name] = LineStyle(INK, _ORACLE_DASHES[n_oracles % len(_ORACLE_DASHES)], None)
            n_oracles += 1
        else:
            # After the colors are used up, a shifted marker keeps the pairs distinct.
            turn = n_methods // len(SERIES)
            marker = _MARKERS[(n_methods + turn) % len(_MARKERS)]
            styles[name] = LineStyle(SERIES[n_methods % len(SERIES)], "-", marker)
            n_methods += 1
    return styles


def styles_of(curves: Sequence[Curve]) -> dict[str, LineStyle]:
    """Return a look for every curve's method."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    return assign_styles(names, {curve.name for curve in curves if curve.is_oracle})


def mark_oracle(name: str) -> str:
    """Return a name that says that it is an oracle's."""
    return name if "oracle" in name.lower() else f"{name} (oracle)"
