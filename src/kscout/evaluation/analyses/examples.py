"""Mask, reconstruction, target and absolute difference of chosen slices under policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis, SliceSetting
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.examples import EXAMPLES, Example, read_examples, save_examples
from kscout.figures.blocks import Block, Drawing

_CAPTION = (
    "Reconstructions at the end of the acquisition: measured columns, reconstruction, target "
    "and absolute difference; differences share one scale."
)


@final
@dataclass(frozen=True)
class ExampleRow:
    """One slice at the end of one acquisition."""

    policy: str
    seed: int
    volume: str
    slice: int
    ssim: float
    columns: str
    """Measured columns, separated by spaces."""

    @classmethod
    def of(cls, example: Example) -> "ExampleRow":
        columns = " ".join(str(column) for column in np.flatnonzero(example.mask))
        where = (example.policy, example.seed, example.volume, example.slice)
        return cls(*where, example.ssim, columns)


@final
@dataclass(frozen=True, kw_only=True)
class Examples(PolicyAnalysis[ExampleRow]):
    """Mask, reconstruction, target and absolute difference of chosen slices.

    Example: kscout analyze examples random runs/greedy-seed0 --slice 3 --data stores/knee
    --reconstructor runs/unet --out analyses
    """

    file = "examples"
    title = "Examples"
    row = ExampleRow
    one_seed = True

    slice: tuple[str, ...] = ()
    """Position or VOLUME:NUMBER; repeatable."""

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[ExampleRow]:
        """Run each policy once over the slices, and keep the images in `examples.npz`."""
        from kscout.evaluation.running.prepare import open_policies
        from kscout.evaluation.running.trajectories import choose_slices, reconstruction_examples

        ready = open_policies(given, SliceSetting.of(self))
        chosen = choose_slices(ready.slices, self.slice or ("0",))
        found = reconstruction_examples(ready.contenders, chosen, ready.reconstructor, ready.plan)
        save_examples(out / EXAMPLES, found)
        return [ExampleRow.of(example) for example in found]

    def figures(self, rows: Sequence[ExampleRow], folder: Path) -> dict[str, Any]:
        """Draw one row per slice and policy."""
        return {self.file: _draw(folder)}

    @classmethod
    def blocks(cls, rows: Sequence[ExampleRow], page: Page, folder: Path) -> list[Block]:
        return [Drawing(_draw(folder), "examples", _CAPTION, is_wide=True)]


def _draw(folder: Path) -> Any:  # noqa: ANN401 - a matplotlib figure
    from kscout.figures.pictures import Shown, draw_examples

    found = read_examples(folder / EXAMPLES)
    return draw_examples([Shown(x.title, x.mask, x.image, x.target, x.ssim) for x in found])
