"""Mask, reconstruction, target and absolute difference of selected slices, for each policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Float

from kscout.errors import DataError
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis
from kscout.evaluation.progress import OnStep
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing
from kscout.files import checked_array, read_arrays, written_whole

with lazily():
    from matplotlib.figure import Figure

    from kscout.acquisition.plan import Plan
    from kscout.core import Reconstructor
    from kscout.data.slices import SliceSet
    from kscout.evaluation.running.entries import EvaluationEntry
    from kscout.evaluation.running.prepare import open_policies
    from kscout.evaluation.running.trajectories import choose_slices, trajectories
    from kscout.figures.pictures import Shown, draw_examples
    from kscout.physics.sampling import start_mask

EXAMPLES = "examples.npz"
_ARRAYS = {
    **{"policy": ("U", 1), "seed": ("iu", 1), "volume": ("U", 1), "slice": ("iu", 1)},
    **{"mask": ("b", 2), "image": ("f", 3), "target": ("f", 3), "ssim": ("f", 1)},
}
"""Kinds of dtype and number of axes of each array."""
_CAPTION = (
    "Reconstructions at the end of the acquisition: measured columns, reconstruction, target "
    "and absolute difference; differences share one scale."
)


@final
@dataclass(frozen=True)
class Example:
    """One slice at the end of one acquisition."""

    policy: str
    seed: int
    volume: str
    slice: int
    mask: Bool[np.ndarray, " col"]
    image: Float[np.ndarray, "row col"]
    """The reconstruction in the target's units."""
    target: Float[np.ndarray, "row col"]
    ssim: float

    @property
    def title(self) -> str:
        return f"{self.policy}\n{self.volume}:{self.slice}"


def save_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write one .npz file with an array [example, ...] for each field."""
    arrays = {
        name: np.stack([np.asarray(getattr(example, name)) for example in examples])
        for name in _ARRAYS
    }
    with written_whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_examples(path: Path) -> list[Example]:
    """Read the file of `save_examples`."""
    try:
        arrays = read_arrays(path)
        if arrays["image"].shape != arrays["target"].shape:
            raise ValueError("images and targets of different shapes")
        columns = [checked_array(arrays[key], *kind) for key, kind in _ARRAYS.items()]
        return [
            Example(
                *(str(policy), int(seed), str(volume), int(number)),
                *(mask, image, target, float(ssim)),
            )
            for policy, seed, volume, number, mask, image, target, ssim in zip(
                *columns, strict=True
            )
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); run `kscout analyze examples`") from error


def reconstruction_examples(
    entries: Sequence[EvaluationEntry], slices: SliceSet, reconstructor: Reconstructor, plan: Plan
) -> list[Example]:
    """Run each policy once on the slices; examples are sorted by slice, then by policy."""
    start = start_mask(plan.start, (len(slices), slices.n_cols)).cpu()
    examples: list[list[Example]] = [[] for _ in range(len(slices))]
    for entry in entries:
        once, row = replace(plan, n_trajectories=1, seed=entry.draw_seed), 0
        for batch, done in trajectories(
            entry.policy, slices, reconstructor, once, keep_images=True
        ):
            assert done.images is not None
            for i in range(len(batch)):
                mask, columns = start[row].clone(), done.columns[i, 0].cpu()
                mask[columns[columns >= 0]] = True
                example = Example(
                    policy=entry.name,
                    seed=entry.seed,
                    volume=slices.volumes[row],
                    slice=slices.slices[row],
                    mask=mask.numpy(),
                    image=done.images[-1, i, 0].float().cpu().numpy(),
                    target=batch.target[i].float().cpu().numpy(),
                    ssim=done.ssim[i, 0, -1].item(),
                )
                examples[row].append(example)
                row += 1
    return list(chain(*examples))


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
    """Mask, reconstruction, target and absolute difference of selected slices.

    Example: kscout analyze examples random runs/greedy --slice 3 --data stores/knee
    --reconstructor runs/unet --out analyses
    """

    file = "examples"
    title = "Examples"
    row = ExampleRow
    one_seed = True

    slice: tuple[str, ...] = ()
    """Position or VOLUME:NUMBER; repeatable."""

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[ExampleRow]:
        ready = open_policies(sources, self)
        chosen = choose_slices(ready.slices, self.slice or ("0",))
        examples = reconstruction_examples(ready.entries, chosen, ready.reconstructor, ready.plan)
        save_examples(out / EXAMPLES, examples)
        return [ExampleRow.of(example) for example in examples]

    def figures(self, rows: Sequence[ExampleRow], folder: Path) -> dict[str, Figure]:
        return {self.file: _draw(folder)}

    @classmethod
    def blocks(cls, rows: Sequence[ExampleRow], page: Page, folder: Path) -> list[Block]:
        return [Drawing(_draw(folder), "examples", _CAPTION, is_wide=True)]


def _draw(folder: Path) -> Figure:
    examples = read_examples(folder / EXAMPLES)
    return draw_examples([Shown(x.title, x.mask, x.image, x.target, x.ssim) for x in examples])
