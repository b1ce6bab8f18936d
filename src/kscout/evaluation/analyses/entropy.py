"""Entropies of policies by step: how much the choice of a column depends on the image.

With p(a | x) the probability of column a in state x, and means over slices and trajectories,

    marginal            H(mean_x p(a | x))
    conditional         mean_x H(p(a | x))
    mutual information  I(a; x) = marginal - conditional >= 0,    H(p) = -sum_a p(a) log p(a)

all in nats (arXiv 2010.16262). The mutual information is how much the image determines the next
column; it is zero for a policy that takes the same columns in every slice. The distribution of a
deterministic policy is 1 at its column: its conditional entropy is zero.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import numpy as np
from jaxtyping import Float

from kscout.config.bounds import AtLeast
from kscout.errors import ConfigError
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis, grouped
from kscout.evaluation.progress import OnStep
from kscout.evaluation.statistics import std_over_seeds
from kscout.evaluation.summaries.paper_numbers import gamma_of
from kscout.exports import lazily
from kscout.figures.blocks import Block, Drawing
from kscout.figures.series import Curve

with lazily():
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    from kscout.acquisition.plan import Plan
    from kscout.core import Policy, Reconstructor
    from kscout.data.slices import SliceSet
    from kscout.evaluation.running.prepare import open_policies
    from kscout.evaluation.running.trajectories import trajectories
    from kscout.figures.curves import draw_entropies

EPSILON = 1e-11
"""Added to probabilities before the logarithm, as the reference does."""
_PANELS = {
    "mutual_information": "mutual information",
    "marginal": "marginal entropy",
    "conditional": "conditional entropy",
}
_CAPTION = (
    "Entropy of the policy per step. Marginal: of the policy averaged over slices. Conditional: "
    "averaged over slices of each slice's own. Their difference, the mutual information, is how "
    "much the choice depends on the slice; where a policy takes its best column, that is all of "
    "the marginal entropy. Bands are one standard deviation over seeds."
)
_SPLIT, _MOST_CURVES = 0.5, 6
"""The discount at which the paper divides figures of many, and the most curves of one figure."""
_PARTS = {
    "": "",
    "-low": " Non-greedy policies with discounts up to .5, the others next to them.",
    "-high": " Non-greedy policies with discounts of .5 and more, the others next to them.",
}


@final
@dataclass(frozen=True)
class Entropies:
    """Entropies per step, in nats."""

    marginal: Float[Tensor, " step"]
    conditional: Float[Tensor, " step"]

    @property
    def mutual_information(self) -> Float[Tensor, " step"]:
        return self.marginal - self.conditional


def _entropy(probabilities: Float[Tensor, "*lead col"]) -> Float[Tensor, "*lead"]:
    return -(probabilities * (probabilities + EPSILON).log()).sum(dim=-1)


def entropies(probabilities: Float[Tensor, "step slice trajectory col"]) -> Entropies:
    """Return marginal and conditional entropy and mutual information per step."""
    return entropies_of_parts([probabilities])


def entropies_of_parts(parts: Iterable[Float[Tensor, "step _slice trajectory col"]]) -> Entropies:
    """Return the same of distributions in parts: memory does not grow with their number."""
    total = entropy = torch.zeros((), dtype=torch.float64)
    count = 0
    for part in parts:
        exact = part.double()
        total = total + exact.sum(dim=(1, 2)).cpu()
        entropy = entropy + _entropy(exact).sum(dim=(1, 2)).cpu()
        count += exact.shape[1] * exact.shape[2]
    return Entropies(marginal=_entropy(total / count), conditional=entropy / count)


def policy_entropies(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: Plan
) -> Entropies:
    """Run a policy on a dataset and return the entropies of its choices."""

    def choices() -> Iterator[Float[Tensor, "step slice trajectory col"]]:
        for _, done in trajectories(
            policy, slices, reconstructor, plan, keep_probabilities=policy.is_stochastic
        ):
            if not done.columns.shape[-1]:
                raise ConfigError("entropies need at least one step; raise the number of steps")
            if done.probabilities is not None:
                yield done.probabilities
            else:
                taken = torch.nn.functional.one_hot(done.columns, slices.n_cols)
                yield taken.permute(2, 0, 1, 3).float()

    return entropies_of_parts(choices())


@final
@dataclass(frozen=True)
class EntropyRow:
    """Entropies of one method at one step, mean and deviation over seeds, in nats."""

    policy: str
    step: int
    """From 1."""
    n_seeds: int
    marginal: float
    marginal_std: float | None
    conditional: float
    conditional_std: float | None
    mutual_information: float
    mutual_information_std: float | None


@final
@dataclass(frozen=True, kw_only=True)
class Entropy(PolicyAnalysis[EntropyRow]):
    """Marginal and conditional entropy and mutual information per step, in nats.

    A deterministic policy, such as `column`, has no conditional entropy: how much its
    columns differ between slices is its mutual information.

    Example: kscout analyze entropy runs/greedy --data stores/knee
    --reconstructor runs/unet --out analyses
    """

    file = "entropies"
    title = "Adaptivity"
    row = EntropyRow

    trajectories: Annotated[int, AtLeast(1)] = 8
    """Sampled acquisitions per slice (paper: 8)."""
    limit: int | None = None
    """Largest number of slices, spread evenly over the split. (default: all)"""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices per batch. (default: chosen for the device)"""

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[EntropyRow]:
        ready = open_policies(sources, self)
        found = ready.by_name(lambda entry: policy_entropies(*ready.inputs(entry)), on_step)
        return [row for name, by_seed in found.items() for row in entropy_rows(name, by_seed)]

    def figures(self, rows: Sequence[EntropyRow], folder: Path) -> dict[str, Figure]:
        parts = _parts(rows).items()
        return {f"{self.file}{part}": draw_entropies(_panels(group)) for part, group in parts}

    @classmethod
    def blocks(cls, rows: Sequence[EntropyRow], page: Page, folder: Path) -> list[Block]:
        looks = page.looks_of({row.policy for row in rows})
        return [
            Drawing(
                draw_entropies(_panels(group), styles=looks),
                f"entropies{part}",
                f"{_CAPTION}{_PARTS[part]}",
                is_wide=True,
            )
            for part, group in _parts(rows).items()
        ]


def entropy_rows(policy: str, by_seed: Sequence[Entropies]) -> list[EntropyRow]:
    """Return mean and standard deviation over the seeds of a policy, by step."""
    columns: list[list[float | None]] = []
    for name in ("marginal", "conditional", "mutual_information"):
        values = np.array([getattr(x, name).tolist() for x in by_seed])
        columns += [values.mean(axis=0).tolist(), [std_over_seeds(step) for step in values.T]]
    steps = enumerate(zip(*columns, strict=True), start=1)
    return [EntropyRow(policy, step, len(by_seed), *values) for step, values in steps]


def _parts(rows: Sequence[EntropyRow]) -> dict[str, Sequence[EntropyRow]]:
    """Return rows by part of the figure: many discounts are divided at .5, as in the paper."""
    gammas = {row.policy: gamma_of(row.policy) for row in rows}
    if len(gammas) <= _MOST_CURVES:
        return {"": rows}
    low = [row for row in rows if (gammas[row.policy] or 0) <= _SPLIT]
    high = [row for row in rows if (gamma := gammas[row.policy]) is None or gamma >= _SPLIT]
    both = {len({row.policy for row in part}) for part in (low, high)}
    return {"": rows} if len(gammas) in both else {"-low": low, "-high": high}


def _panels(rows: Sequence[EntropyRow]) -> dict[str, list[Curve]]:
    panels: dict[str, list[Curve]] = {title: [] for title in _PANELS.values()}
    for name, group in grouped(rows, lambda row: row.policy).items():
        for key, title in _PANELS.items():
            mean = [getattr(row, key) for row in group]
            std = [getattr(row, f"{key}_std") for row in group]
            panels[title].append(Curve.with_spread(name, [row.step for row in group], mean, std))
    return panels
