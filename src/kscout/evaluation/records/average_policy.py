"""The average policy of an evaluation, from its long table; nothing here needs torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Float32, Int, Int16

from kscout.errors import DataError
from kscout.evaluation.records.orders import read_orders
from kscout.evaluation.records.results import read_scores
from kscout.evaluation.summaries.summary import Summary


@final
@dataclass(frozen=True)
class AveragePolicy:
    """What a policy does on average; row t speaks of step t + 1."""

    sampled: Float32[np.ndarray, "step col"]
    """Fraction of acquisitions that have measured the column by that step, the start included."""
    probabilities: Float32[np.ndarray, "step col"] | None = None
    """Mean probability of each column; None for a deterministic policy, or where not known."""


def sampled_by_step(
    columns: Int[np.ndarray, "acquisition step"], start: Bool[np.ndarray, "acquisition col"]
) -> Float32[np.ndarray, "step col"]:
    """Return the fraction of acquisitions that have measured each column by each step."""
    n_acquisitions, n_steps = columns.shape
    taken = np.zeros((n_steps, start.shape[1]))
    which, steps = np.nonzero(columns >= 0)
    np.add.at(taken, (steps, columns[which, steps]), 1.0)
    # A column is measured at most once in an acquisition, so counts add up to "by that step".
    return ((taken.cumsum(axis=0) + start.sum(axis=0)) / n_acquisitions).astype(np.float32)


def average_policies_of_results(
    path: Path, policies: Sequence[str], summary: Summary, *, seed: int | None = None
) -> dict[str, AveragePolicy]:
    """Average what policies measured in an evaluation: the first trajectory of each slice.

    Args:
        path: `results.csv`, or its folder.
        policies: their names in it.
        summary: of the same evaluation.
        seed: which seed; for each policy the one with the best final SSIM where not given.
    """
    wanted = best_seeds(path, policies) if seed is None else dict.fromkeys(policies, seed)
    read = read_orders(path, summary, is_wanted=lambda name, own: wanted.get(name) == own)
    found = {one.policy: _average(one.order[:, 0]) for one in read}
    for name in policies:
        if name not in found:
            raise DataError(
                f"{path} has no rows of policy {name!r} with seed {wanted[name]}; evaluate it there"
            )
    return {name: found[name] for name in policies}


def _average(order: Int16[np.ndarray, "slice col"]) -> AveragePolicy:
    n_steps = max(int(order.max()), 0)
    columns = np.full((len(order), n_steps), -1)
    which, place = np.nonzero(order > 0)
    columns[which, order[which, place] - 1] = place
    return AveragePolicy(sampled_by_step(columns, order == 0))


def best_seeds(path: Path, policies: Sequence[str]) -> dict[str, int]:
    """Return the seed of each policy whose final mean SSIM is highest; ties go to the first."""
    final: dict[str, dict[int, float]] = {name: {} for name in policies}
    for scores in read_scores(path):
        if scores.policy in final:
            final[scores.policy][scores.seed] = scores.metric("ssim")[:, -1].mean()
    for name, by_seed in final.items():
        if not by_seed:
            raise DataError(f"{path} has no policy {name!r}; evaluate it there")
    return {name: max(by_seed, key=lambda seed: by_seed[seed]) for name, by_seed in final.items()}
