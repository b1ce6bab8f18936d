"""The networks, starts and seeds of `blind.py`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

ACQUISITIONS = {16: ("knee-base", 16), 4: ("knee-long", 28)}
"""By number of central columns at the start: preset and columns to acquire, of 128."""
N_TRAINED = {"knee": 27_846, "heads": 6_400}
"""Training slices."""
FULL = "fully sampled"
EVALUATIONS = ("scores", "oracles", "full", "center")
"""Of one task: policies, oracles, the image of all columns, and the order from the center."""


@final
@dataclass(frozen=True)
class Task:
    """One network, the columns that its policies start from, and a seed."""

    kind: str
    network: str
    n_initial: int
    seed: int

    @property
    def steps(self) -> int:
        """Columns to acquire."""
        return ACQUISITIONS[self.n_initial][1]

    @property
    def network_name(self) -> str:
        """Name of the run of the network: a general one serves both starts."""
        start = "" if self.network == "general" else f"{self.n_initial}-"
        return f"{self.kind}-{self.network}-{start}unet-{self.seed}"

    def is_seed_of(self, other: "Task") -> bool:
        """Return whether another task differs in its seed alone."""
        return replace(self, seed=other.seed) == other

    def name(self, part: str) -> str:
        """Return the name of the run of a policy."""
        return f"{self.kind}-{self.network}-{self.n_initial}-{part}-{self.seed}"


def tasks() -> Iterator[Task]:
    """Yield all tasks: three seeds from 16 columns on knees, one elsewhere."""
    for kind in N_TRAINED:
        for network in ("general", "cotrained"):
            for n_initial in ACQUISITIONS:
                for seed in range(3 if (kind, n_initial) == ("knee", 16) else 1):
                    yield Task(kind, network, n_initial, seed)
