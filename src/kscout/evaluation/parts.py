"""What an evaluation has finished, kept until it is whole: a kill costs one policy, not all."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from kscout.data.slices import SliceSet
from kscout.evaluation.entrants import Entrant
from kscout.evaluation.results import ResultsWriter, Scores, writing_results
from kscout.files import written_whole
from kscout.weights import fingerprint

PARTS = ".finished"
"""Folder beside the results, gone when they are whole."""


@final
class Parts:
    """Rows and scores of single policies, on disk, each known by all that decides it.

    Args:
        folder: where they are kept.
        depends_on: what decides the scores of every policy, as JSON values.
    """

    def __init__(self, folder: Path, depends_on: dict[str, Any]) -> None:
        self.folder = folder
        self.depends_on = {**depends_on, "torch": torch.__version__}
        self.files: dict[tuple[str, int, int], Path] = {}

    def recall(self, entrant: Entrant, slices: SliceSet) -> Scores | None:
        """Return what a policy scored before, None where it has not been finished."""
        rows = self._rows(entrant)
        if entrant.is_given or not (rows.is_file() and _values(rows).is_file()):
            return None
        with np.load(_values(rows), allow_pickle=False) as kept:
            return Scores(
                policy=entrant.name,
                seed=entrant.seed,
                volumes=slices.volumes,
                slices=slices.slices,
                values=kept["values"],
                n_trajectories=int(kept["n_trajectories"]),
            )

    def writing(self, entrant: Entrant) -> AbstractContextManager[ResultsWriter]:
        """Open the rows of one policy for writing; they stay if all goes well."""
        return writing_results(self._rows(entrant))

    def keep(self, entrant: Entrant, scores: Scores) -> None:
        """Keep the scores of a policy whose rows are written."""
        with written_whole(_values(self._rows(entrant))) as aside, aside.open("wb") as file:
            np.savez(file, values=scores.values, n_trajectories=scores.n_trajectories)

    def join(self, path: Path, entrants: Sequence[Entrant]) -> None:
        """Write the rows of all policies as one table."""
        with written_whole(path) as aside, aside.open("wb") as table:
            for number, entrant in enumerate(entrants):
                with self._rows(entrant).open("rb") as rows:
                    if number:
                        rows.readline()
                    shutil.copyfileobj(rows, table)

    def forget(self) -> None:
        """Remove what was kept, that of other settings too."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, entrant: Entrant) -> Path:
        key = (entrant.name, entrant.seed, entrant.draw_seed)
        # Once, before it runs: a policy of the caller's may change as it does.
        if key not in self.files:
            own = [*key, entrant.is_learned, fingerprint(entrant.policy)]
            order = getattr(entrant.policy, "order", None)
            text = json.dumps([self.depends_on, own, order], sort_keys=True, default=str)
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.files[key] = self.folder / f"{name}.csv"
        return self.files[key]


def _values(rows: Path) -> Path:
    return rows.with_suffix(".npz")
