"""Files of an evaluation: finished policies, and a few slices with images.

The columns of `results.csv` are measured again, so no policy runs a second time for the images.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float64

from kscout.acquisition.loop import Acquisition
from kscout.data.slices import SliceSet
from kscout.evaluation.records.acquisitions import (
    ACQUISITIONS,
    PolicySteps,
    SliceRecord,
    save_acquisition,
)
from kscout.evaluation.records.results import ResultsWriter, Scores, read_rows, writing_results
from kscout.evaluation.running.entries import EvaluationEntry
from kscout.evaluation.running.prepare import Prepared
from kscout.evaluation.summaries.summary import PolicySummary, Summary
from kscout.files import read_arrays, written_whole
from kscout.json_types import JsonObject
from kscout.weights import fingerprint

QUANTILES = (0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6)
"""Quantiles of the lead over the reference: the median slice first."""
_MOST_PIXELS = 4_000_000
"""Pixels of all images of a record with all steps; a pixel takes a byte, and less in the file."""

Columns = dict[str, list[list[int]]]
"""Columns of every step in one slice, by policy."""


def record_examples(
    out: Path, ready: Prepared, summary: Summary, scores: Sequence[Scores], n_examples: int
) -> None:
    """Write `acquisition-1.npz` and so on into the folder of an evaluation.

    The first has the images of all steps, the others the last image.
    """
    for old in out.glob(ACQUISITIONS):
        old.unlink()
    leads, words = lead_by_slice(summary, scores)
    shares: dict[int, float] = {}
    for share in QUANTILES[:n_examples]:
        shares.setdefault(slice_at_quantile(leads, share), share)
    columns = columns_of(out, summary.ranked, scores, list(shares)) if shares else []
    for number, ((row, share), by_policy) in enumerate(zip(shares.items(), columns, strict=True)):
        acquisition = _replayed(ready, summary, row, by_policy)
        n_pixels = acquisition.target.size * len(by_policy)
        n_frames = 1 if number else max(2, _MOST_PIXELS // n_pixels)
        where = f"{scores[0].volumes[row]}, slice {scores[0].slices[row]}"
        title = f"{where}: {words.format(leads[row])}, {_rank(share)}"
        shown = replace(acquisition.thinned(n_frames), title=title, shown=summary.shown_first)
        save_acquisition(shown, out / f"acquisition-{number + 1}.npz")


def lead_by_slice(
    summary: Summary, scores: Sequence[Scores]
) -> tuple[Float64[np.ndarray, " slice"], str]:
    """Return the lead of the headline policy over the reference on every slice, and its words."""
    headline, reference = summary.headline_policy, summary.reference
    final = {
        name: np.mean([x.metric("ssim")[:, -1] for x in scores if x.policy == name], axis=0)
        for name in {reference, headline.policy if headline else reference}
    }
    if headline is None:
        return final[reference], f"SSIM of {reference}: {{:.4f}}"
    lead = final[headline.policy] - final[reference]
    return lead, f"SSIM of {headline.policy} minus that of {reference}: {{:+.4f}}"


def slice_at_quantile(values: Float64[np.ndarray, " slice"], share: float) -> int:
    """Return the slice at a quantile of the values."""
    return int(np.argsort(values, kind="stable")[int(share * len(values))])


def _rank(share: float) -> str:
    if share == QUANTILES[0]:
        return "the median over all slices"
    return f"the {share:.0%} quantile over all slices".replace("%", " %")


def columns_of(
    out: Path, ranked: Sequence[PolicySummary], scores: Sequence[Scores], rows: Sequence[int]
) -> list[Columns]:
    """Read the first acquisition of slices by every policy from the table of results."""
    first = {x.policy: x.seed for x in reversed(scores)}
    by_slice: dict[tuple[str, int], Columns] = {
        (scores[0].volumes[i], scores[0].slices[i]): {x.policy: [] for x in ranked} for i in rows
    }
    for row in read_rows(out):
        columns = by_slice.get((row.volume, int(row.slice)))
        if columns is None or row.trajectory != "0" or int(row.seed) != first[row.policy]:
            continue
        columns[row.policy].append([int(column) for column in row.column.split()])
    return list(by_slice.values())


@torch.no_grad()
def _replayed(ready: Prepared, summary: Summary, row: int, columns: Columns) -> SliceRecord:
    """Measure the columns of policies in one slice again, and return all images.

    The first step of `columns` is the start, which has none.
    """
    slices = ready.slices
    (batch,) = slices.subset(torch.tensor([row])).batches(1)
    simulator = ready.plan.simulator(batch, ready.reconstructor)
    acquisition = Acquisition(simulator, ready.plan, n_trajectories=len(columns))
    start_columns = acquisition.state.mask[0].nonzero()[:, 0].tolist()
    images, ssim = [], []
    for number, taken in enumerate(zip(*columns.values(), strict=True)):
        if number:
            acquisition.measure(torch.tensor(taken, device=slices.device))
        images.append(simulator.images(acquisition.state).float().cpu().numpy())
        ssim.append(acquisition.state.score.float().cpu().numpy())
    pictures, scores = np.stack(images, axis=1), np.stack(ssim, axis=1)
    oracles = [policy.policy for policy in summary.policies if policy.is_oracle]
    return SliceRecord(
        batch.target[0].float().cpu().numpy(),
        tuple(start_columns),
        tuple(
            PolicySteps(name, pictures[i], scores[i], tuple(chain(*steps)), name in oracles)
            for i, (name, steps) in enumerate(columns.items())
        ),
        steps=summary.moments,
    )


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
        with written_whole(_values(self._rows(entry))) as aside, aside.open("wb") as file:
            np.savez(file, values=scores.values, n_trajectories=np.array(scores.n_trajectories))
        return scores

    def _read(self, entry: EvaluationEntry, slices: SliceSet) -> Scores | None:
        """Return the stored scores of a policy; None if it is not finished."""
        rows = self._rows(entry)
        if entry.is_given or not (rows.is_file() and _values(rows).is_file()):
            return None
        try:
            arrays = read_arrays(_values(rows))
            values, n_trajectories = arrays["values"], int(arrays["n_trajectories"])
        except (OSError, KeyError, TypeError, ValueError):
            return None
        where = (entry.name, entry.seed, slices.volumes, slices.slices)
        return Scores(*where, values, n_trajectories)

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
