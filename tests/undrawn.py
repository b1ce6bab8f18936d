"""Figures that are painted once or not at all, for tests that do not look at them."""

import sys
from pathlib import Path
from typing import Any

import pytest


def paint_once() -> None:
    """Let figures be saved by one coarse painting in place of three fine ones.

    Those take longer than most that they show. `figures/test_drawings.py`, which knows the function
    by its own name, reads all three.
    """
    for name in ("kscout.figures.style", "kscout.apps.report.page"):
        if name in sys.modules:
            sys.modules[name].save_figure = _save_coarse  # type: ignore[attr-defined]


def _save_coarse(figure: Any, folder: Path, name: str) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    paths = [folder / f"{name}.{kind}" for kind in ("png", "pdf", "svg")]
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        path.touch()
    FigureCanvasAgg(figure).print_png(paths[0])
    return paths


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let analyses save empty pictures, and pages show none."""

    def touch(figure: object, folder: Path, name: str) -> list[Path]:
        (folder / f"{name}.png").touch()
        return [folder / f"{name}.png"]

    patch.setattr("kscout.figures.style.save_figure", touch)
    svg = "kscout.apps.report.page.to_inline_svg"
    patch.setattr(svg, lambda figure, *, name, label: "<svg></svg>")
