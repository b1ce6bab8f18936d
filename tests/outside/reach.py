"""Distance of the acquired columns from the center of k-space."""

import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from kscout.evaluation import Analysis


@dataclass(frozen=True)
class ReachRow:
    policy: str
    step: int
    distance: float


@dataclass(frozen=True, kw_only=True)
class Reach(Analysis[ReachRow]):
    """Mean distance of the chosen columns from the center of k-space, by step.

    Example: kscout analyze reach:Reach results/knee --out analyses
    """

    reads = "results"
    file = "reach"
    title = "Distance from the center"
    row = ReachRow

    def compute(self, given, *, out, on_step=None):
        found = defaultdict(list)
        for folder in map(Path, given):
            center = json.loads((folder / "summary.json").read_text())["n_cols"] // 2
            for line in csv.DictReader((folder / "results.csv").read_text().splitlines()):
                if line["column"]:
                    key = (line["policy"], int(line["step"]))
                    found[key].append(abs(int(line["column"]) - center))
        return [ReachRow(*key, sum(far) / len(far)) for key, far in found.items()]
