"""How far from the center policies measure, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kscout.evaluation import PolicyAnalysis


@dataclass(frozen=True)
class Row:
    """One step of one policy."""

    policy: str
    step: int
    distance: float


@dataclass(frozen=True, kw_only=True)
class Spread(PolicyAnalysis[Row]):
    """Mean distance of the acquired column from the center, by step.

    Example: kscout analyze spread:Spread random --data stores/knee --reconstructor
    zero-filled --n-initial 8 --steps 8 --out analyses
    """

    file, title, row = "spread", "Distance from the center", Row

    scale: float = 1.0
    """Distances are divided by this."""

    def compute(self, given: Sequence[str], *, out: Path, on_step: object = None) -> list[Row]:
        import torch

        from kscout.evaluation import open_policies

        ready, rows = open_policies(given, self), []
        for one in ready.entries:
            columns = torch.cat([done.columns for _, done in ready.trajectories(one)])
            distance = (columns.float() - ready.slices.n_cols // 2).abs() / self.scale
            means = distance.mean(dim=(0, 1)).tolist()
            rows += [Row(one.name, step, mean) for step, mean in enumerate(means, start=1)]
        return rows
