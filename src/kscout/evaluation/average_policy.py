"""The average policy: which columns have been sampled by which step, in which share of slices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.ranking import read_summary
from kscout.evaluation.results import read_rows, read_scores
from kscout.evaluation.subjects import SubjectSetting, open_subjects
from kscout.evaluation.trajectories import AcquisitionPlan, trajectories
from kscout.physics.sampling import center_mask


@final
@dataclass(frozen=True)
class AveragePolicy:
    """What a policy does on average; row t speaks of step t + 1."""

    sampled: Float[Tensor, "step col"]
    """Fraction of acquisitions that have measured the column by that step, the start included."""
    start: Bool[Tensor, " col"]
    """Columns measured before the first step; drawn white."""
    probabilities: Float[Tensor, "step col"] | None = None
    """Mean probability of each column; None for a deterministic policy, or where not known."""


def sampled_by_step(
    columns: Int[Tensor, "acquisition step"], start: Bool[Tensor, " col"]
) -> Float[Tensor, "step col"]:
    """Return the fraction of acquisitions that have measured each column by each step."""
    n_acquisitions, n_steps = columns.shape
    taken = torch.zeros(n_steps, len(start), dtype=torch.float64)
    ones = torch.ones(n_steps, n_acquisitions, dtype=torch.float64)
    taken.scatter_add_(1, columns.T.cpu(), ones)
    # A column is measured at most once in an acquisition, so counts add up to "by that step".
    return (taken.cumsum(dim=0) / n_acquisitions).masked_fill(start, 1.0).float()


def average_policy(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: AcquisitionPlan
) -> AveragePolicy:
    """Run a policy over a data set and average what it measured (paper: one trajectory)."""
    start = center_mask(slices.n_cols, plan.n_initial)
    columns, total, count = [], torch.zeros(plan.horizon, slices.n_cols, dtype=torch.float64), 0
    for _, trajectory in trajectories(
        policy, slices, reconstructor, plan, keep_probabilities=policy.is_stochastic
    ):
        columns.append(trajectory.columns.flatten(0, 1).cpu())
        if trajectory.probabilities is not None:
            total += trajectory.probabilities.double().sum(dim=(1, 2)).cpu()
            count += trajectory.probabilities.shape[1] * trajectory.probabilities.shape[2]
    return AveragePolicy(
        sampled=sampled_by_step(torch.cat(columns), start),
        start=start,
        probabilities=(total / count).float() if count else None,
    )


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
    start = center_mask(n_cols, n_initial)
    columns = torch.tensor(list(taken.values()), dtype=torch.long)
    if columns.numel() and int(columns.max()) >= n_cols:
        raise ConfigError(f"{path} holds column {int(columns.max())}, images have {n_cols}")
    return AveragePolicy(sampled=sampled_by_step(columns, start), start=start)


def best_seed(path: Path, policy: str) -> int:
    """Return the seed of a policy whose final mean SSIM is highest; ties go to the first."""
    found = [scores for scores in read_scores(path) if scores.policy == policy]
    if not found:
        raise DataError(f"{path} has no policy {policy!r}")
    return max(found, key=lambda scores: scores.metric("ssim")[:, -1].mean()).seed


def averages_of_results(
    path: Path, policies: Sequence[str], *, seed: int | None = None
) -> dict[str, AveragePolicy]:
    """Return the average policies of an evaluation folder by name; see `average_policy_of_results`.

    Args:
        path: folder with `results.csv` and `summary.json`.
        policies: their names in it.
        seed: which seed; each policy's best where not given.
    """
    summary = read_summary(path)
    n_cols, n_initial = summary["n_cols"], summary["n_initial"]
    return {
        name: average_policy_of_results(path, name, n_cols=n_cols, n_initial=n_initial, seed=seed)
        for name in policies
    }


def averages_of_runs(policies: Sequence[str], setting: SubjectSetting) -> dict[str, AveragePolicy]:
    """Run policies (names, run folders, weights files) and average what each measured."""
    subjects = open_subjects(policies, setting)
    found = {}
    for name, entrants in subjects.by_name.items():
        for entrant in entrants:
            plan = replace(subjects.plan, seed=entrant.draw_seed)
            title = name if len(entrants) == 1 else f"{name}, seed {entrant.seed}"
            found[title] = average_policy(
                entrant.policy, subjects.slices, subjects.reconstructor, plan
            )
    return found


def average_policy_rows(policies: dict[str, AveragePolicy]) -> list[dict[str, object]]:
    """Return a long table: policy, step (from 1), column, sampled, probability."""
    return [
        {
            "policy": name,
            "step": step + 1,
            "column": column,
            "sampled": found.sampled[step, column].item(),
            "probability": None
            if found.probabilities is None
            else found.probabilities[step, column].item(),
        }
        for name, found in policies.items()
        for step in range(found.sampled.shape[0])
        for column in range(found.sampled.shape[1])
    ]


def start_columns(policies: Sequence[AveragePolicy]) -> list[int]:
    """Return the columns measured before the first step, which all must share."""
    if any(not torch.equal(one.start, policies[0].start) for one in policies):
        raise ConfigError("these policies start from different columns; draw them apart")
    return policies[0].start.nonzero()[:, 0].tolist()
