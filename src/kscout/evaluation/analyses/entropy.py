"""Entropies of policies by step: how much the choice of a column depends on the image."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import numpy as np

from kscout.config.bounds import AtLeast
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis, SliceSetting, grouped
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.statistics import std_over_seeds
from kscout.evaluation.summaries.paper_numbers import gamma_of
from kscout.figures.blocks import Block, Drawing
from kscout.figures.series import Curve

if TYPE_CHECKING:
    from kscout.evaluation.adaptivity import Entropies

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
"""The discount that the paper's figures of many are divided at, and how many one figure holds."""
_PARTS = {
    "": "",
    "-low": " Non-greedy policies with discounts up to .5, the others beside.",
    "-high": " Non-greedy policies with discounts of .5 and more, the others beside.",
}


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

    A policy that draws nothing, such as a dense one, has no conditional entropy: how much its
    columns differ between slices is its mutual information.

    Example: kscout analyze entropy runs/greedy-seed0 runs/greedy-seed1 --data stores/knee
    --reconstructor runs/unet --out analyses
    """

    file = "entropies"
    title = "Adaptivity"
    row = EntropyRow

    trajectories: Annotated[int, AtLeast(1)] = 8
    """Per slice (paper: 8)."""
    limit: int | None = None
    """Largest number of slices, spread over the split."""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices per batch; not given: chosen for the device."""

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[EntropyRow]:
        """Run the policies; seeds of one method share a row."""
        from kscout.evaluation.adaptivity import policy_entropies
        from kscout.evaluation.running.prepare import open_policies

        ready = open_policies(given, SliceSetting.of(self))
        rows = []
        for name, contenders in ready.by_name.items():
            by_seed = []
            for one in contenders:
                plan = ready.plan_of(one)
                by_seed.append(
                    policy_entropies(one.policy, ready.slices, ready.reconstructor, plan)
                )
                if on_step is not None:
                    n_slices = len(ready.slices)
                    on_step(Step(f"{name}, seed {one.seed}", n_slices, n_slices))
            rows += entropy_rows(name, by_seed)
        return rows

    def figures(self, rows: Sequence[EntropyRow], folder: Path) -> dict[str, Any]:
        """Draw the three quantities side by side, with bands over seeds."""
        from kscout.figures.curves import draw_entropies

        parts = _parts(rows).items()
        return {f"{self.file}{part}": draw_entropies(_panels(own)) for part, own in parts}

    @classmethod
    def blocks(cls, rows: Sequence[EntropyRow], page: Page, folder: Path) -> list[Block]:
        from kscout.figures.curves import draw_entropies

        looks = page.looks_of({row.policy for row in rows})
        return [
            Drawing(
                draw_entropies(_panels(own), styles=looks),
                f"entropies{part}",
                f"{_CAPTION}{_PARTS[part]}",
                is_wide=True,
            )
            for part, own in _parts(rows).items()
        ]


def entropy_rows(policy: str, by_seed: Sequence["Entropies"]) -> list[EntropyRow]:
    """Return mean and standard deviation over the seeds of a policy, by step."""
    columns: list[list[float | None]] = []
    for name in ("marginal", "conditional", "mutual_information"):
        values = np.array([getattr(one, name).tolist() for one in by_seed])
        columns += [values.mean(axis=0).tolist(), [std_over_seeds(step) for step in values.T]]
    steps = enumerate(zip(*columns, strict=True), start=1)
    return [EntropyRow(policy, step, len(by_seed), *values) for step, values in steps]


def _parts(rows: Sequence[EntropyRow]) -> dict[str, Sequence[EntropyRow]]:
    """Return rows by part of the figure; many discounts are divided at .5, as in the paper."""
    gammas = {row.policy: gamma_of(row.policy) for row in rows}
    if len(gammas) <= _MOST_CURVES:
        return {"": rows}
    low = [row for row in rows if (gammas[row.policy] or 0) <= _SPLIT]
    high = [row for row in rows if (found := gammas[row.policy]) is None or found >= _SPLIT]
    both = {len({row.policy for row in part}) for part in (low, high)}
    return {"": rows} if len(gammas) in both else {"-low": low, "-high": high}


def _panels(rows: Sequence[EntropyRow]) -> dict[str, list[Curve]]:
    panels: dict[str, list[Curve]] = {title: [] for title in _PANELS.values()}
    for name, own in grouped(rows, lambda row: row.policy).items():
        for key, title in _PANELS.items():
            mean = [getattr(row, key) for row in own]
            std = [getattr(row, f"{key}_std") for row in own]
            panels[title].append(Curve.with_spread(name, [row.step for row in own], mean, std))
    return panels
