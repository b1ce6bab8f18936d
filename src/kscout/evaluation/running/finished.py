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
from kscout.evaluation.running.entries import EvaluationEntry
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

    def recall(self, entry: EvaluationEntry, slices: SliceSet) -> Scores | None:
        """Return what a policy scored before, None where it has not been finished."""
        rows = self._rows(entry)
        if entry.is_given or not (rows.is_file() and _values(rows).is_file()):
            return None
        try:
            kept = read_arrays(_values(rows))
            values, n_acquired = kept["values"], kept["n_acquired"]
            n_trajectories = int(kept["n_trajectories"])
        except (OSError, KeyError, TypeError, ValueError):
            return None  # Damaged: it is scored anew.
        return Scores(
            policy=entry.name,
            seed=entry.seed,
            volumes=slices.volumes,
            slices=slices.slices,
            values=values,
            n_trajectories=n_trajectories,
            n_acquired=n_acquired,
        )

    def writing(self, entry: EvaluationEntry) -> AbstractContextManager[ResultsWriter]:
        """Open the rows of one policy for writing; they stay if all goes well."""
        return writing_results(self._rows(entry))

    def keep(self, entry: EvaluationEntry, scores: Scores) -> None:
        """Keep the scores of a policy whose rows are written."""
        with written_whole(_values(self._rows(entry))) as aside, aside.open("wb") as file:
            assert scores.n_acquired is not None
            counts = np.array(scores.n_trajectories), scores.n_acquired
            np.savez(file, values=scores.values, n_trajectories=counts[0], n_acquired=counts[1])

    def join(self, path: Path, entries: Sequence[EvaluationEntry]) -> None:
        """Write the rows of all policies as one table."""
        with written_whole(path) as aside, aside.open("wb") as table:
            for number, entry in enumerate(entries):
                with self._rows(entry).open("rb") as rows:
                    if number:
                        rows.readline()
                    shutil.copyfileobj(rows, table)

    def forget(self) -> None:
        """Remove what was kept, that of other settings too."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, entry: EvaluationEntry) -> Path:
        key = (entry.name, entry.seed, entry.draw_seed)
        # Once, before it runs: a policy of the caller's may change as it does.
        if key not in self.files:
            own = [*key, entry.is_learned, fingerprint(entry.policy)]
            text = json.dumps([self.depends_on, own], sort_keys=True, default=str)
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.files[key] = self.folder / f"{name}.csv"
        return self.files[key]


def _values(rows: Path) -> Path:
    return rows.with_suffix(".npz")
