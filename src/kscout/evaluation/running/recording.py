"""Keep a few evaluated slices with their images, for the player and the examples of a report.

What is kept is what was scored: the columns of `results.csv` are measured again, so that no policy
runs a second time, oracles included.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64

from kscout.acquisition.episode import Simulator
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.evaluation.records.acquisitions import (
    ACQUISITIONS,
    Acquisition,
    PolicySteps,
    save_acquisition,
)
from kscout.evaluation.records.results import Scores, read_rows
from kscout.evaluation.running.prepare import Prepared
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.evaluation.summaries.summary import PolicySummary, Summary

QUANTILES = (0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6)
"""Of the lead over the reference: the typical slice first, then slices on either side of it."""
_MOST_PIXELS = 4_000_000
"""Of all images of a record step by step; each takes a byte, and less in the file."""

Columns = dict[str, list[list[int]]]
"""By policy, what it acquired of one slice: the columns of every step, in order."""


def record_examples(
    out: Path, ready: Prepared, summary: Summary, scores: Sequence[Scores], n_examples: int
) -> None:
    """Write `acquisition-1.npz` and so on into the folder of an evaluation, beside its results.

    The first is kept step by step, the others at the end only.
    """
    for old in out.glob(ACQUISITIONS):
        old.unlink()
    leads, words = lead_by_slice(summary, scores)
    shares: dict[int, float] = {}
    for share in QUANTILES[:n_examples]:
        shares.setdefault(typical_place(leads, share), share)
    columns = columns_of(out, summary.ranked, scores, list(shares)) if shares else []
    for number, ((place, share), own) in enumerate(zip(shares.items(), columns, strict=True)):
        found = replayed(
            *(ready.slices, place, ready.reconstructor, ready.plan, own),
            moments=summary.moments,
            oracles=[policy.policy for policy in summary.policies if policy.is_oracle],
        )
        n_frames = 1 if number else max(2, _MOST_PIXELS // _n_pixels(found))
        where = f"{scores[0].volumes[place]}, slice {scores[0].slices[place]}"
        title = f"{where}: {words.format(leads[place])}, {_rank(share)}"
        kept = replace(found.thinned(n_frames), title=title, shown=summary.shown_first)
        save_acquisition(kept, out / f"acquisition-{number + 1}.npz")


def _n_pixels(acquisition: Acquisition) -> int:
    return acquisition.target.size * len(acquisition.policies)


def lead_by_slice(
    summary: Summary, scores: Sequence[Scores]
) -> tuple[Float64[np.ndarray, " slice"], str]:
    """Return how far the told policy ends above the reference on every slice, and words for it."""
    told = summary.headline_policy
    final = {
        name: np.mean([one.metric("ssim")[:, -1] for one in scores if one.policy == name], axis=0)
        for name in {summary.reference, told.policy if told else summary.reference}
    }
    if told is None:
        return final[summary.reference], f"SSIM of {summary.reference}: {{:.4f}}"
    lead = final[told.policy] - final[summary.reference]
    return lead, f"SSIM of {told.policy} minus that of {summary.reference}: {{:+.4f}}"


def typical_place(values: Float64[np.ndarray, " slice"], share: float) -> int:
    """Return the slice below whose value a share of all slices lies."""
    return int(np.argsort(values, kind="stable")[int(share * len(values))])


def _rank(share: float) -> str:
    if share == QUANTILES[0]:
        return "the median over all slices"
    return f"the {share:.0%} quantile over all slices".replace("%", " %")


def columns_of(
    out: Path, ranked: Sequence[PolicySummary], scores: Sequence[Scores], places: Sequence[int]
) -> list[Columns]:
    """Read the first acquisition of slices by every policy from the table of results."""
    first = {one.policy: one.seed for one in reversed(scores)}
    found: dict[tuple[str, int], Columns] = {
        (scores[0].volumes[place], scores[0].slices[place]): {one.policy: [] for one in ranked}
        for place in places
    }
    for row in read_rows(out):
        if row.trajectory != "0" or int(row.seed) != first[row.policy]:
            continue
        own = found.get((row.volume, int(row.slice)))
        if own is not None:
            own[row.policy].append([int(column) for column in row.column.split()])
    return list(found.values())


@torch.no_grad()
def replayed(
    slices: SliceSet,
    place: int,
    reconstructor: Reconstructor,
    plan: AcquisitionPlan,
    columns: Columns,
    *,
    moments: tuple[int, ...] = (),
    oracles: Collection[str] = (),
) -> Acquisition:
    """Measure again what policies acquired of one slice, and keep every image.

    Args:
        slices: among which it is.
        place: its place there.
        reconstructor: what makes images.
        plan: start and protocol.
        columns: by policy, those of every step; the first step is the start, which has none.
        moments: columns acquired at the start and after each step, where not one at a time.
        oracles: policies among these that look at the truth.
    """
    (batch,) = slices.subset(torch.tensor([place])).batches(1)
    simulator = Simulator(batch, reconstructor, protocol=plan.protocol)
    initial = plan.start(slices)
    own = initial[place : place + 1] if isinstance(initial, torch.Tensor) else initial
    state = simulator.start(own, n_trajectories=len(columns))
    start = state.mask[0].nonzero()[:, 0].tolist()
    images, ssim = [], []
    for taken in zip(*columns.values(), strict=True):
        mask = state.mask.clone()
        for row, step in enumerate(taken):
            mask[row, step] = True
        state = simulator.grow(state, mask)
        images.append(simulator.images(state).float().cpu().numpy())
        ssim.append(state.score.float().cpu().numpy())
    pictures, scores = np.stack(images, axis=1), np.stack(ssim, axis=1)
    return Acquisition(
        batch.target[0].float().cpu().numpy(),
        tuple(start),
        tuple(
            PolicySteps(name, pictures[row], scores[row], tuple(chain(*steps)), name in oracles)
            for row, (name, steps) in enumerate(columns.items())
        ),
        steps=moments,
    )
