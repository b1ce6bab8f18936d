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
from kscout.evaluation.records.results import ResultsWriter, Scores, writing_results
from kscout.evaluation.running.contenders import Contender
from kscout.files import read_arrays, written_whole
from kscout.weights import fingerprint

FINISHED = ".finished"
"""Folder beside the results, gone when they are whole."""


@final
class FinishedPolicies:
    """Rows and scores of single policies, on disk, each known by all that decides it."""

    def __init__(self, folder: Path, depends_on: dict[str, Any]) -> None:
        self.folder = folder
        self.depends_on = {**depends_on, "torch": torch.__version__}
        self.files: dict[tuple[str, int, int], Path] = {}

    def recall(self, contender: Contender, slices: SliceSet) -> Scores | None:
        """Return what a policy scored before, None where it has not been finished."""
        rows = self._rows(contender)
        if contender.is_given or not (rows.is_file() and _values(rows).is_file()):
            return None
        try:
            kept = read_arrays(_values(rows))
            values, n_acquired = kept["values"], kept["n_acquired"]
            n_trajectories = int(kept["n_trajectories"])
        except (OSError, KeyError, TypeError, ValueError):
            return None  # Damaged: it is scored anew.
        return Scores(
            policy=contender.name,
            seed=contender.seed,
            volumes=slices.volumes,
            slices=slices.slices,
            values=values,
            n_trajectories=n_trajectories,
            n_acquired=n_acquired,
        )

    def writing(self, contender: Contender) -> AbstractContextManager[ResultsWriter]:
        """Open the rows of one policy for writing; they stay if all goes well."""
        return writing_results(self._rows(contender))

    def keep(self, contender: Contender, scores: Scores) -> None:
        """Keep the scores of a policy whose rows are written."""
        with written_whole(_values(self._rows(contender))) as aside, aside.open("wb") as file:
            assert scores.n_acquired is not None
            counts = np.array(scores.n_trajectories), scores.n_acquired
            np.savez(file, values=scores.values, n_trajectories=counts[0], n_acquired=counts[1])

    def join(self, path: Path, contenders: Sequence[Contender]) -> None:
        """Write the rows of all policies as one table."""
        with written_whole(path) as aside, aside.open("wb") as table:
            for number, contender in enumerate(contenders):
                with self._rows(contender).open("rb") as rows:
                    if number:
                        rows.readline()
                    shutil.copyfileobj(rows, table)

    def forget(self) -> None:
        """Remove what was kept, that of other settings too."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, contender: Contender) -> Path:
        key = (contender.name, contender.seed, contender.draw_seed)
        # Once, before it runs: a policy of the caller's may change as it does.
        if key not in self.files:
            own = [*key, contender.is_learned, fingerprint(contender.policy)]
            text = json.dumps([self.depends_on, own], sort_keys=True, default=str)
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.files[key] = self.folder / f"{name}.csv"
        return self.files[key]


def _values(rows: Path) -> Path:
    return rows.with_suffix(".npz")
