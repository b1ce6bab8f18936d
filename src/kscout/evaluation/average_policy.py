"""The average policy of an evaluation, from its long table; nothing here needs torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Float32, Int

from kscout.errors import ConfigError, DataError
from kscout.evaluation.results import read_rows, read_scores


@final
@dataclass(frozen=True)
class AveragePolicy:
    """What a policy does on average; row t speaks of step t + 1."""

    sampled: Float32[np.ndarray, "step col"]
    """Fraction of acquisitions that have measured the column by that step, the start included."""
    probabilities: Float32[np.ndarray, "step col"] | None = None
    """Mean probability of each column; None for a deterministic policy, or where not known."""


def sampled_by_step(
    columns: Int[np.ndarray, "acquisition step"], start: Bool[np.ndarray, " col"]
) -> Float32[np.ndarray, "step col"]:
    """Return the fraction of acquisitions that have measured each column by each step."""
    n_acquisitions, n_steps = columns.shape
    taken = np.zeros((n_steps, len(start)))
    np.add.at(taken, (np.arange(n_steps)[None, :], columns), 1.0)
    # A column is measured at most once in an acquisition, so counts add up to "by that step".
    sampled = taken.cumsum(axis=0) / n_acquisitions
    sampled[:, start] = 1.0
    return sampled.astype(np.float32)


def average_policy_of_results(
    path: Path, policy: str, *, n_cols: int, n_initial: int, seed: int | None = None
) -> AveragePolicy:
    """Average what a policy measured in an evaluation: the first trajectory of each slice.

    Args:
        path: `results.csv`, or its folder.
        policy: the policy's name in it.
        n_cols: number of columns of the images.
        n_initial: central columns measured at the start.
        seed: which seed; the one with the best final SSIM where not given.
    """
    wanted = best_seed(path, policy) if seed is None else seed
    taken: dict[tuple[str, str], list[int]] = {}
    for row in read_rows(path):
        if row["policy"] == policy and int(row["seed"]) == wanted and row["trajectory"] == "0":
            own = taken.setdefault((row["volume"], row["slice"]), [])
            own.extend([int(row["column"])] if row["column"] else [])
    if not taken:
        raise DataError(f"{path} has no rows of policy {policy!r} with seed {wanted}")
    columns = np.array(list(taken.values()), dtype=np.int64)
    if columns.size and columns.max() >= n_cols:
        raise ConfigError(f"{path} holds column {columns.max()}, images have {n_cols}")
    # As `kscout.physics.sampling.center_mask`, which needs torch.
    first = (n_cols - n_initial + 1) // 2
    place = np.arange(n_cols)
    return AveragePolicy(sampled_by_step(columns, (place >= first) & (place < first + n_initial)))


def best_seed(path: Path, policy: str) -> int:
    """Return the seed of a policy whose final mean SSIM is highest; ties go to the first."""
    found = [scores for scores in read_scores(path) if scores.policy == policy]
    if not found:
        raise DataError(f"{path} has no policy {policy!r}")
    return max(found, key=lambda scores: scores.metric("ssim")[:, -1].mean()).seed
