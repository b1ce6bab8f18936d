"""Columns that evaluations measured and their order, as files and a figure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kscout.errors import DataError
from kscout.evaluation.analyses.analysis import Analysis, Page
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.orders import read_orders
from kscout.evaluation.records.run_names import folder_labels
from kscout.evaluation.summaries.summary import read_summary
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing
from kscout.files import checked_array, read_arrays

with lazily():
    from matplotlib.figure import Figure

    from kscout.figures.pictures import draw_masks

_CAPTION = (
    "Columns of k-space that were measured, a row per slice. Gray columns are the start; the color "
    "of the others shows how early they were acquired."
)
_N_PANELS = 6


@final
@dataclass(frozen=True)
class MaskRow:
    """Columns of one policy with one seed in one evaluation."""

    results: str
    policy: str
    seed: int
    n_slices: int
    n_trajectories: int
    n_acquired: float
    """Mean number of columns acquired after the start."""
    file: str
    """Files of masks and orders next to the table: this name with .npz and .txt."""


@final
@dataclass(frozen=True, kw_only=True)
class Masks(Analysis[MaskRow]):
    """Which columns policies measured in evaluations, and in which order.

    Writes for each policy and seed masks/NAME.npz (order: slice x trajectory x column, 0 for the
    start, 1 for the first column acquired, -1 for none) and masks/NAME.txt (a line per slice), and
    plots them. NAME is the policy, followed by -seedS for one of several seeds.

    Example: kscout analyze masks results/knee --out analyses
    """

    reads = "results"
    file = "masks"
    title = "Masks"
    row = MaskRow

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[MaskRow]:
        rows: list[MaskRow] = []
        labels = folder_labels([Path(x).resolve() for x in sources])
        for path, label in labels.items():
            summary = read_summary(path)
            n_seeds = {x.policy: x.n_seeds for x in summary.policies}
            for orders in read_orders(path, summary):
                words = [*([label] if len(labels) > 1 else []), orders.policy]
                words += [f"seed{orders.seed}"] if n_seeds[orders.policy] > 1 else []
                name = _file_name(words, rows)
                orders.save(out / "masks", name)
                n_slices, n_trajectories, _ = orders.order.shape
                counts = (n_slices, n_trajectories, orders.n_acquired)
                rows.append(MaskRow(label, orders.policy, orders.seed, *counts, f"masks/{name}"))
        return rows

    def figures(self, rows: Sequence[MaskRow], folder: Path) -> dict[str, Figure]:
        parts = [rows[at : at + _N_PANELS] for at in range(0, len(rows), _N_PANELS)]
        return {
            f"{self.file}-{number}" if number > 1 else self.file: _draw(part, folder)
            for number, part in enumerate(parts, start=1)
        }

    @classmethod
    def blocks(cls, rows: Sequence[MaskRow], page: Page, folder: Path) -> list[Block]:
        return [Drawing(_draw(rows[:_N_PANELS], folder), "masks", _CAPTION, is_wide=True)]


def _file_name(words: Sequence[str], before: Sequence[MaskRow]) -> str:
    """Return a valid file name that no previous row has."""
    name = re.sub(r"[^\w.+-]+", "-", "-".join(words)).strip("-.") or "policy"
    taken = {row.file.partition("/")[2].lower() for row in before}
    return name if name.lower() not in taken else f"{name}-{len(before) + 1}"


def _draw(rows: Sequence[MaskRow], folder: Path) -> Figure:
    pictures = {}
    for row in rows:
        file = folder / f"{row.file}.npz"
        try:
            # The table names it: no file elsewhere is opened.
            if file.parent.parent != folder or file.parent.name != "masks":
                raise ValueError("it is not in the folder masks")
            order = checked_array(read_arrays(file)["order"], "iu", 3)[:, 0]
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{file} holds no masks ({error}); run `analyze masks` again"
            ) from error
        names = [row.results] if len({other.results for other in rows}) > 1 else []
        pictures[f"{' '.join([*names, row.policy])}, seed {row.seed}"] = order
    return draw_masks(pictures)
