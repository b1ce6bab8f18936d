"""Figures that are laid out and never painted, for tests that do not look at them."""

from pathlib import Path

import pytest


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Let analyses save empty pictures: painting one thrice takes longer than most of their work.

    Pages of reports paint them all the same, and `figures/test_drawings.py` reads the files.
    """

    def touch(figure: object, folder: Path, name: str) -> list[Path]:
        (folder / f"{name}.png").touch()
        return [folder / f"{name}.png"]

    patch.setattr("kscout.figures.style.save_figure", touch)
