"""Finished policies of an evaluation that is not complete: an interruption costs one policy."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch

from kscout.data.slices import SliceSet
from kscout.evaluation.records.results import ResultsWriter, Scores, writing_results
from kscout.evaluation.running.entries import EvaluationEntry
from kscout.files import read_arrays, written_whole
from kscout.json_types import JsonObject
from kscout.weights import fingerprint

FINISHED = ".finished"
"""Folder next to the results, removed when they are complete."""


@final
class FinishedPolicies:
    """Rows and scores of single policies, in files named by everything that they depend on."""

    def __init__(self, folder: Path, depends_on: JsonObject) -> None:
        self.folder = folder
        self.depends_on = {**depends_on, "torch": torch.__version__}
        self.files: dict[tuple[str, int, int], Path] = {}

    def scores(
        self, entry: EvaluationEntry, slices: SliceSet, compute: Callable[[ResultsWriter], Scores]
    ) -> Scores:
        """Return the stored scores of a policy, or compute and store them."""
        stored = self._read(entry, slices)
        if stored is not None:
            return stored
        with writing_results(self._rows(entry)) as writer:
            scores = compute(writer)
        self._store(entry, scores)
        return scores

    def _read(self, entry: EvaluationEntry, slices: SliceSet) -> Scores | None:
        """Return the stored scores of a policy; None if it is not finished."""
        rows = self._rows(entry)
        if entry.is_given or not (rows.is_file() and _values(rows).is_file()):
            return None
        try:
            arrays = read_arrays(_values(rows))
            values, n_acquired = arrays["values"], arrays["n_acquired"]
            n_trajectories = int(arrays["n_trajectories"])
        except (OSError, KeyError, TypeError, ValueError):
            return None
        where = (entry.name, entry.seed, slices.volumes, slices.slices)
        return Scores(*where, values, n_trajectories, n_acquired)

    def _store(self, entry: EvaluationEntry, scores: Scores) -> None:
        with written_whole(_values(self._rows(entry))) as aside, aside.open("wb") as file:
            assert scores.n_acquired is not None
            count = np.array(scores.n_trajectories)
            np.savez(file, values=scores.values, n_trajectories=count, n_acquired=scores.n_acquired)

    def join(self, path: Path, entries: Sequence[EvaluationEntry]) -> None:
        with written_whole(path) as aside, aside.open("wb") as table:
            for number, entry in enumerate(entries):
                with self._rows(entry).open("rb") as rows:
                    if number:
                        rows.readline()
                    shutil.copyfileobj(rows, table)

    def remove(self) -> None:
        """Remove all files, also those of other settings."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _rows(self, entry: EvaluationEntry) -> Path:
        key = (entry.name, entry.seed, entry.draw_seed)
        # Before it runs: a policy from Python may change when it is used.
        if key not in self.files:
            policy = [*key, entry.is_learned, fingerprint(entry.policy)]
            text = json.dumps([self.depends_on, policy], sort_keys=True, default=str)
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            self.files[key] = self.folder / f"{name}.csv"
        return self.files[key]


def _values(rows: Path) -> Path:
    return rows.with_suffix(".npz")
