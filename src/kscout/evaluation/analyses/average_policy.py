"""Average policies: the share of slices in which each column has been measured by each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, final

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from kscout.config.bounds import AtLeast
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses.analysis import Analysis, Page, ReportInputs, Split, grouped
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.orders import read_orders
from kscout.evaluation.records.results import RESULTS, read_scores
from kscout.evaluation.summaries.summary import EvaluationFolder, Summary, read_summary
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing, labeled, under_protocol
from kscout.names import Protocol

with lazily():
    import torch
    from matplotlib.figure import Figure

    from kscout.acquisition.plan import Plan
    from kscout.core import Policy, Reconstructor
    from kscout.data.slices import SliceSet
    from kscout.evaluation.running.prepare import open_policies
    from kscout.evaluation.running.trajectories import trajectories
    from kscout.figures.pictures import draw_average_policy
    from kscout.physics.sampling import start_mask

_CAPTION = (
    "Average policy: the fraction of test slices for which a column has been sampled by each "
    "step, one trajectory per slice. The white band in the middle is the start."
)
_N_PANELS = 3
"""Average policies in one row of a figure."""
_LARGEST_RESULTS = 64 * 2**20
"""Bytes of `results.csv` up to which a report without the table reads it."""


@final
@dataclass(frozen=True)
class AveragePolicy:
    """Shares and mean probabilities of columns; row t is step t + 1."""

    sampled: Float32[np.ndarray, "step col"]
    """Fraction of acquisitions that have measured the column by that step, the start included."""
    probabilities: Float32[np.ndarray, "step col"] | None = None
    """Mean probability of each column; None for a deterministic policy, or if unknown."""


def sampled_by_step(
    columns: Int[np.ndarray, "acquisition step"], start: Bool[np.ndarray, "acquisition col"]
) -> Float32[np.ndarray, "step col"]:
    """Return the fraction of acquisitions that have measured each column by each step."""
    n_acquisitions, n_steps = columns.shape
    counts = np.zeros((n_steps, start.shape[1]))
    rows, steps = np.nonzero(columns >= 0)
    np.add.at(counts, (steps, columns[rows, steps]), 1.0)
    # A column is measured at most once in an acquisition, so counts add up to "by that step".
    return ((counts.cumsum(axis=0) + start.sum(axis=0)) / n_acquisitions).astype(np.float32)


def average_policy(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: Plan
) -> AveragePolicy:
    """Run a policy on a dataset and average what it measured (paper: one trajectory)."""
    columns, total, count = [], torch.zeros(plan.horizon, slices.n_cols, dtype=torch.float64), 0
    for _, done in trajectories(
        policy, slices, reconstructor, plan, keep_probabilities=policy.is_stochastic
    ):
        columns.append(done.columns.flatten(0, 1).cpu())
        if done.probabilities is not None:
            total += done.probabilities.double().sum(dim=(1, 2)).cpu()
            count += done.probabilities.shape[1] * done.probabilities.shape[2]
    measured = torch.cat(columns)
    start = start_mask(plan.start, (len(slices), slices.n_cols)).cpu()
    start = start.repeat_interleave(len(measured) // len(slices), dim=0)
    return AveragePolicy(
        sampled=sampled_by_step(measured.numpy(), start.numpy()),
        probabilities=(total / count).float().numpy() if count else None,
    )


def average_policies_of_results(
    path: Path, policies: Sequence[str], summary: Summary, *, seed: int | None = None
) -> dict[str, AveragePolicy]:
    """Average the columns of an evaluation, of the first trajectory of each slice.

    Without `seed`, the one with the best final SSIM of each policy is used.
    """
    seeds = best_seeds(path, policies) if seed is None else dict.fromkeys(policies, seed)
    orders = read_orders(path, summary, is_wanted=lambda name, seed: seeds.get(name) == seed)
    averages = {}
    for one in orders:
        order = one.order[:, 0]
        columns = np.full((len(order), max(int(order.max()), 0)), -1)
        rows, cols = np.nonzero(order > 0)
        columns[rows, order[rows, cols] - 1] = cols
        averages[one.policy] = AveragePolicy(sampled_by_step(columns, order == 0))
    for name in policies:
        if name not in averages:
            raise DataError(
                f"{path} has no rows of policy {name!r} with seed {seeds[name]}; evaluate it there"
            )
    return {name: averages[name] for name in policies}


def best_seeds(path: Path, policies: Sequence[str]) -> dict[str, int]:
    """Return the seed of each policy whose final mean SSIM is highest; the first of equal ones."""
    final: dict[str, dict[int, float]] = {name: {} for name in policies}
    for scores in read_scores(path):
        if scores.policy in final:
            final[scores.policy][scores.seed] = scores.metric("ssim")[:, -1].mean()
    for name, by_seed in final.items():
        if not by_seed:
            raise DataError(f"{path} has no policy {name!r}; evaluate it there")
    return {name: max(by_seed, key=lambda seed: by_seed[seed]) for name, by_seed in final.items()}


@final
@dataclass(frozen=True)
class PolicyRow:
    """One column at one step."""

    policy: str
    step: int
    """From 1."""
    column: int
    sampled: float
    """Share of acquisitions that have measured the column by that step, the start included."""
    probability: float | None
    """Mean probability of the column; None where it is not known."""


@final
@dataclass(frozen=True, kw_only=True)
class AveragePolicies(Analysis[PolicyRow]):
    """Average policies: the fraction of slices that have acquired a column by each step.

    With --results the policies are names in that evaluation, and the best of several seeds is
    plotted. Otherwise each policy runs once over the split, and mean probabilities are written.

    Example: kscout analyze policy greedy --results results/knee --out analyses
    """

    reads = "policies"
    file = "average_policy"
    title = "Average policy"
    row = PolicyRow

    results: Path | None = None
    """Read the columns from this evaluation and run nothing."""
    data: Path | None = None
    """Dataset."""
    reconstructor: str | None = None
    """Reconstruction, as for `evaluate`."""
    steps: int | None = None
    """Columns to acquire. (default: the runs')"""
    split: Split | None = None
    """Split to use: train, val or test. (default: test)"""
    n_initial: int | None = None
    """Columns at the start. (default: the runs')"""
    limit: int | None = None
    """Largest number of slices, spread evenly over the split. (default: all)"""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices per batch. (default: chosen for the device)"""
    protocol: Protocol | None = None
    """paper or blind. (default: as the reconstruction was trained, else blind)"""
    device: str | None = None
    """auto, cpu or cuda. (default: auto)"""
    seed: tuple[int, ...] = ()
    """Random seed of sampling; with --results, the seed to show. (default: 0)"""

    def __post_init__(self) -> None:
        if self.results is None:
            return
        names = [item.name for item in fields(self) if item.name not in ("results", "seed")]
        flags = [f"--{n.replace('_', '-')}" for n in names if getattr(self, n) is not None]
        if flags:
            raise ConfigError(
                f"{', '.join(flags)} would have no effect: --results reads an evaluation and runs "
                "nothing; leave out one or the other"
            )
        if len(self.seed) > 1:
            raise ConfigError(
                f"--results shows one seed of each policy, and --seed names {len(self.seed)}; give "
                "one, or none for the best"
            )

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[PolicyRow]:
        if self.results is not None:
            seed, summary = self.seed[0] if self.seed else None, read_summary(self.results)
            averages = average_policies_of_results(self.results, sources, summary, seed=seed)
        else:
            ready = open_policies(sources, self)
            found = ready.by_name(
                lambda entry: (entry.seed, average_policy(*ready.inputs(entry))), on_step
            )
            averages = {
                name if len(by_seed) == 1 else f"{name}, seed {seed}": average
                for name, by_seed in found.items()
                for seed, average in by_seed
            }
        return [row for name, average in averages.items() for row in _rows(name, average)]

    def figures(self, rows: Sequence[PolicyRow], folder: Path) -> dict[str, Figure]:
        return {self.file: draw_average_policy(_pictures(rows))}

    @classmethod
    def printed_rows(cls, rows: Sequence[PolicyRow]) -> Sequence[PolicyRow]:
        return ()

    @classmethod
    def blocks(cls, rows: Sequence[PolicyRow], page: Page, folder: Path) -> list[Block]:
        return _blocks(_pictures(rows))

    @classmethod
    def blocks_without_table(cls, inputs: ReportInputs, page: Page) -> list[Block]:
        """Draw the columns of trained policies in evaluations, from their long tables."""
        blocks: list[Block] = []
        for folder in inputs.evaluations:
            results = folder.path / RESULTS
            if not results.is_file() or results.stat().st_size > _LARGEST_RESULTS:
                continue
            drawn = under_protocol(_blocks(_pictures_of(folder)), folder.summary.protocol)
            blocks += labeled(drawn, folder.label) if len(inputs.evaluations) > 1 else drawn
        return blocks


def _rows(name: str, average: AveragePolicy) -> list[PolicyRow]:
    sampled = average.sampled.tolist()
    probabilities = None if average.probabilities is None else average.probabilities.tolist()
    return [
        PolicyRow(name, step + 1, column, share, probabilities and probabilities[step][column])
        for step, shares in enumerate(sampled)
        for column, share in enumerate(shares)
    ]


def _pictures(rows: Sequence[PolicyRow]) -> dict[str, Float[np.ndarray, "step col"]]:
    pictures = {}
    for name, group in grouped(rows, lambda row: row.policy).items():
        n_cols = 1 + max(row.column for row in group)
        picture = np.zeros((max(row.step for row in group), n_cols))
        for row in group:
            picture[row.step - 1, row.column] = row.sampled
        pictures[name] = picture
    return pictures


def _pictures_of(folder: EvaluationFolder) -> dict[str, Float[np.ndarray, "step col"]]:
    names = [entry.policy for entry in folder.summary.ranked if entry.is_trained]
    averages = average_policies_of_results(folder.path, names, folder.summary) if names else {}
    return {name: average.sampled.astype(np.float64) for name, average in averages.items()}


def _blocks(pictures: Mapping[str, Float[np.ndarray, "step col"]]) -> list[Block]:
    names = list(pictures)
    blocks: list[Block] = []
    for place in range(0, len(names), _N_PANELS):
        shown = {name: pictures[name] for name in names[place : place + _N_PANELS]}
        suffix = f"-{place // _N_PANELS + 1}" if place else ""
        figure = partial(draw_average_policy, shown)
        name = f"average-policy{suffix}"
        blocks.append(Drawing(figure, name, _CAPTION, is_wide=len(shown) > 1))
    return blocks
