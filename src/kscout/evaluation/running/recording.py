"""A few evaluated slices with their images, for the player and the examples of a report.

The columns of `results.csv` are measured again, so no policy runs a second time.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from torch.nn.utils.rnn import pad_sequence

from kscout.acquisition.loop import NOT_ACQUIRED, Acquisition
from kscout.acquisition.plan import Plan
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.evaluation.records.acquisitions import (
    ACQUISITIONS,
    PolicySteps,
    SliceRecord,
    save_acquisition,
)
from kscout.evaluation.records.results import Scores, read_rows
from kscout.evaluation.running.prepare import Prepared
from kscout.evaluation.summaries.summary import PolicySummary, Summary

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
        acquisition = replayed(
            *(ready.slices, row, ready.reconstructor, ready.plan, by_policy),
            moments=summary.moments,
            oracles=[policy.policy for policy in summary.policies if policy.is_oracle],
        )
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
def replayed(
    slices: SliceSet,
    row: int,
    reconstructor: Reconstructor,
    plan: Plan,
    columns: Columns,
    *,
    moments: tuple[int, ...] = (),
    oracles: Collection[str] = (),
) -> SliceRecord:
    """Measure the columns of policies in one slice again, and return all images.

    The first step of `columns` is the start, which has none. `moments` are the columns acquired at
    the start and after each step, if not one at a time.
    """
    (batch,) = slices.subset(torch.tensor([row])).batches(1)
    simulator = plan.simulator(batch, reconstructor)
    # Policies may end at different steps.
    plan = replace(plan.rows([row]), horizons=(plan.horizon,))
    acquisition = Acquisition(simulator, plan, n_trajectories=len(columns))
    start_columns = acquisition.state.mask[0].nonzero()[:, 0].tolist()
    images, ssim = [], []
    for taken in zip(*columns.values(), strict=True):
        steps = [torch.tensor(step, device=slices.device) for step in taken]
        acquisition.measure(pad_sequence(steps, True, NOT_ACQUIRED).long())
        images.append(simulator.images(acquisition.state).float().cpu().numpy())
        ssim.append(acquisition.state.score.float().cpu().numpy())
    pictures, scores = np.stack(images, axis=1), np.stack(ssim, axis=1)
    return SliceRecord(
        batch.target[0].float().cpu().numpy(),
        tuple(start_columns),
        tuple(
            PolicySteps(name, pictures[i], scores[i], tuple(chain(*steps)), name in oracles)
            for i, (name, steps) in enumerate(columns.items())
        ),
        steps=moments,
    )
