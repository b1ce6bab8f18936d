"""What the demo runs at the paper's size: weights from the zoo, on knees that they never saw."""

from dataclasses import dataclass
from typing import final

from kscout.data.generate import MakeSettings
from kscout.evaluation.compare import EvaluationSetting
from kscout.evaluation.paper_numbers import same_setting
from kscout.evaluation.trajectories import AcquisitionPlan

UNET = "knee-unet"
"""The reconstruction under all of these policies."""
ZERO_FILLED = "zero-filled"
BASELINES = ("random", "center-out")
SHOWN_BASELINE = "center-out"
"""Of these, the one in pictures; it is also what zero-filled images are measured by."""
SIZE = 128


@final
@dataclass(frozen=True)
class ZooPolicy:
    """Weights of the zoo and the acquisition that they were trained for."""

    title: str
    """What tables call it."""
    weights: str
    """Its name in the zoo, and on benchmarks/leaderboard.json, unless it goes by `title` there."""
    n_initial: int
    horizon: int


POLICIES = (
    ZooPolicy("fixed", "knee-base-fixed", 16, 16),
    ZooPolicy("greedy", "knee-base-greedy", 16, 16),
)
"""Of each acquisition, the first is what the others are compared with, the last what is told of.

A line more is a policy more on the page; `python benchmarks/demo_oracles.py` then stores what goes
with it.
"""


@final
@dataclass(frozen=True)
class Budget:
    """One start and number of steps, and the policies that were trained for it."""

    n_initial: int
    horizon: int
    policies: tuple[ZooPolicy, ...]

    @property
    def name(self) -> str:
        """The paper's name of this acquisition, where it has one."""
        same = same_setting(SIZE, self.n_initial, self.horizon)
        return f"knee-{self.n_initial}-{self.horizon}" if same is None else same.name

    @property
    def wanted(self) -> list[str]:
        """All that takes part, as `kscout evaluate --policy` takes it."""
        return [*BASELINES, *(f"{one.title}={one.weights}" for one in self.policies)]

    @property
    def reference(self) -> str:
        return self.policies[0].title

    @property
    def told(self) -> str:
        return self.policies[-1].title


@final
@dataclass(frozen=True)
class PaperSize:
    """How many knees of the zoo's own test set are looked at."""

    policies: tuple[ZooPolicy, ...] = POLICIES
    n_volumes: int = 6
    """Knees: the first ones of the test set that `kscout data make knee --paper` makes."""
    n_slices: int = 18
    """Per knee; that recipe's number, because another one would draw other images."""
    limit: int = 7
    """Slices looked at; seven of 108 lie at seven depths, six would lie at one."""
    n_trajectories: int = 2
    """Acquisitions per slice of `random`."""

    @property
    def making(self) -> MakeSettings:
        """The recipe of the zoo's test set, cut after a few knees."""
        return MakeSettings(
            kind="knee", volumes=(0, 0, self.n_volumes), slices=self.n_slices, size=SIZE, seed=0
        )

    @property
    def budgets(self) -> list[Budget]:
        """The acquisitions in the order of their first policy."""
        starts = dict.fromkeys((one.n_initial, one.horizon) for one in self.policies)
        return [
            Budget(
                *start,
                tuple(one for one in self.policies if (one.n_initial, one.horizon) == start),
            )
            for start in starts
        ]

    def evaluation(self, budget: Budget, *, reference: str | None = None) -> EvaluationSetting:
        """Return how policies are run: trained ones take their best column."""
        plan = AcquisitionPlan(
            n_initial=budget.n_initial,
            horizon=budget.horizon,
            n_trajectories=self.n_trajectories,
            is_argmax=True,
        )
        return EvaluationSetting(plan, seeds=(0,), limit=self.limit, reference=reference)
