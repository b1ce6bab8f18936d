"""Records of AlphaZero's arms, what they say of each other, and their rows on the leaderboard.

`alphazero.py` makes them, one per arm and seed, and one of the marks that all arms stand beside.
Records write out the constants that were studied, as those were other defaults when they were made.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import final

import numpy as np
from leaderboard import REFERENCE, LeaderboardRow
from paired import Paired, Volume, mean_ssim, paired
from tables import difference, markdown, number, spread

from kscout.config import read
from kscout.evaluation.statistics import std_over_seeds

RECORDS = Path(__file__).with_name("alphazero_results")
MARKS = ("random", "equispaced-one", "equispaced-two", REFERENCE)
"""What every arm is compared with, beside the zoo's greedy policy for the acquisition."""
CENTER = "searches-32"
"""What the study changes one constant of; the defaults are what it found."""
_CENTRAL = {"n_searches": 32, "exploration": 1}
_CHANGED: dict[str, dict[str, float]] = {
    CENTER: {},
    "searches-8": {"n_searches": 8},
    "searches-128": {"n_searches": 128},
    "exploration-0.25": {"exploration": 0.25},
    "exploration-4": {"exploration": 4},
    "mean": {"maximum_weight": 0},
    "maximum": {"maximum_weight": 1},
}
ARMS: dict[str, tuple[str, ...]] = {
    "alphazero": (),
    "greedy": (),
    **{
        arm: tuple(f"training.{x}={y}" for x, y in {**_CENTRAL, **changed}.items())
        for arm, changed in _CHANGED.items()
    },
}
"""Settings that an arm changes; `greedy` is the paper's estimator after the same time."""
PLAN = [
    *(("knee-base", arm, seed) for seed in (0, 1, 2) for arm in ("alphazero", "greedy")),
    *(("knee-base", arm, 0) for arm in [*ARMS][2:]),
    *(("knee-long", arm, seed) for seed in (0, 1, 2) for arm in ("alphazero", "greedy")),
]
"""What is run, the most telling first."""
N_LAST = 5
"""Rounds at the end over which searches are averaged."""
Place = tuple[str, str, str]
"""Store, preset, and the key of marks."""


@final
@dataclass(frozen=True)
class Marks:
    """What policies that are not trained here reach."""

    data: str
    preset: str
    volumes: dict[str, dict[str, Volume]]
    """By policy and volume."""
    ssim: dict[str, float]
    """By policy, over all slices."""
    key: str = ""
    """Tells them from those of other slices, networks and columns; see `marks.key_of`."""

    @property
    def place(self) -> Place:
        """Arms of the same place are compared with these."""
        return self.data, self.preset, self.key


@final
@dataclass(frozen=True)
class ArmRecord:
    """What one arm reached with one seed."""

    arm: str
    seed: int
    data: str
    preset: str
    reconstructor: str
    changes: tuple[str, ...]
    minutes: float
    """Asked for."""
    n_rounds: int
    """Rounds, or epochs of the greedy estimator, that were done in this time."""
    best_round: int
    """By validation; its weights were evaluated."""
    train_s: float
    n_reconstructions: int
    """That the training counted; `n_made` is all."""
    n_parameters: int
    val_ssim: tuple[float, ...]
    search_ssim: tuple[float, ...]
    """By round: what the decisions of searches, which see the truth, reach on training slices."""
    tree_ssim: tuple[float, ...]
    """By round: the best mask that those searches met."""
    volumes: dict[str, Volume]
    """Final scores, drawn as the paper does."""
    argmax_volumes: dict[str, Volume]
    """The same with the best column at each step."""
    command: str
    """What trains it, for as many rounds."""
    evaluates: str
    device: str
    commit: str | None = None
    marks: str = ""
    """Key of the marks that it stands beside."""
    n_beside: int | None = None
    """Other trainings that shared the GPU meanwhile, as told; time is not GPU time then."""
    n_decisions: int | None = None
    """That were learned from; of records before it was told, None."""
    loss: tuple[float, ...] = ()
    """By round: AlphaZero's is the cross-entropy with the shares of searches, in nats."""
    label_entropy: tuple[float, ...] = ()
    """By round: the entropy of those shares, below which no loss can come."""
    conditional_entropy: float | None = None
    """Of the policy's distribution on test slices, mean over steps, in nats."""
    mutual_information: float | None = None
    """How much of the choice depends on the slice; likewise."""
    n_uncounted: int = 0
    """Reconstructions of optimizer steps, of records whose training did not count them yet."""

    @property
    def n_made(self) -> int:
        """Reconstructions of the training."""
        return self.n_reconstructions + self.n_uncounted

    @property
    def place(self) -> Place:
        """Records of one place are compared."""
        return self.data, self.preset, self.marks


def read_records(folder: Path = RECORDS) -> list[ArmRecord]:
    """Return all records, in the order of the arms."""
    files = [x for x in sorted(folder.glob("*.json")) if not x.name.startswith("marks-")]
    found = [read(ArmRecord, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return sorted(found, key=lambda x: (x.place, -x.minutes, [*ARMS].index(x.arm), x.seed))


def read_marks(folder: Path = RECORDS) -> dict[Place, Marks]:
    """Return the marks by place."""
    files = sorted(folder.glob("marks-*.json"))
    found = [read(Marks, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return {one.place: one for one in found}


def arms_of(records: Sequence[ArmRecord]) -> list[list[ArmRecord]]:
    """Return the seeds of each arm, as `read_records` orders them."""
    return [list(seeds) for _, seeds in groupby(records, lambda x: (x.place, x.minutes, x.arm))]


def table(folder: Path = RECORDS) -> str:
    """Return what marks and arms reach, and what was not run."""
    head = (
        *("acquisition", "arm", "seeds", "SSIM, drawn", "SSIM, best column", "validation"),
        *("searches on training slices", "minutes", "rounds", "reconstructions"),
    )
    marks, records = read_marks(folder), read_records(folder)
    lines = []
    for place in dict.fromkeys([*marks, *(one.place for one in records)]):
        known = marks[place].ssim if place in marks else {}
        lines += [
            (place[1], f"`{name}`", "-", number(ssim), *("-",) * 6) for name, ssim in known.items()
        ]
        lines += [_scores(arm) for arm in arms_of([x for x in records if x.place == place])]
    missing = ", ".join(not_run(records)) or "nothing of the plan"
    return f"{markdown(head, lines)}\nNot run: {missing}.\n"


def _scores(arm: Sequence[ArmRecord]) -> tuple[str, ...]:
    first = arm[0]
    drawn, best = (
        [mean_ssim(x) for x in (y.volumes for y in part)] for part in (arm, by_best(arm))
    )
    searched = [float(np.mean(one.search_ssim[-N_LAST:])) for one in arm if one.search_ssim]
    return (
        *(first.preset, f"`{first.arm}`", ", ".join(str(one.seed) for one in arm)),
        *(spread(float(np.mean(x)), std_over_seeds(x)) for x in (drawn, best)),
        number(float(np.mean([max(one.val_ssim) for one in arm]))),
        number(float(np.mean(searched))) if searched else "-",
        f"{np.mean([one.train_s for one in arm]) / 60:.1f}",
        ", ".join(str(one.n_rounds) for one in arm),
        f"{np.mean([one.n_made for one in arm]) / 1e6:.1f} million",
    )


def by_best(arm: Sequence[ArmRecord]) -> list[ArmRecord]:
    """Return the records with the scores of their best columns."""
    return [replace(one, volumes=one.argmax_volumes) for one in arm]


def paired_table(folder: Path = RECORDS) -> str:
    """Return the differences of arms, drawn, to the marks and to the greedy arm of equal time."""
    marks, records = read_marks(folder), read_records(folder)
    names = list(dict.fromkeys(_role(one, name) for one in marks.values() for name in one.volumes))
    head = ("acquisition", "arm", "minutes", *(f"minus {name}" for name in names))
    lines = []
    for arm in arms_of(records):
        found = marks.get(arm[0].place)
        own = {} if found is None else {_role(found, x): y for x, y in found.volumes.items()}
        others = [as_often(arm, own[name]) if name in own else [] for name in names]
        others.append([] if arm[0].arm == "greedy" else same_time(arm, records, "greedy"))
        cells = [_cell(arm, other) for other in others]
        lines.append((arm[0].preset, f"`{arm[0].arm}`", f"{arm[0].minutes:g}", *cells))
    return markdown((*head, "minus greedy of equal time"), lines)


def _role(marks: Marks, name: str) -> str:
    """Return what a mark is called where acquisitions stand in one table."""
    return "the zoo's greedy" if name == f"{marks.preset}-greedy" else f"`{name}`"


def same_time(arm: Sequence[ArmRecord], records: Sequence[ArmRecord], name: str) -> list[ArmRecord]:
    """Return the seeds of an arm of a name that had the time of another."""
    wanted = (arm[0].place, arm[0].minutes, name)
    return [x for x in records if (x.place, x.minutes, x.arm) == wanted]


def as_often(arm: Sequence[ArmRecord], volumes: dict[str, Volume]) -> list[ArmRecord]:
    """Return a mark once for each seed of an arm."""
    return [replace(one, volumes=volumes) for one in arm]


def _cell(arm: Sequence[ArmRecord], other: Sequence[ArmRecord]) -> str:
    found = paired(arm, other)
    return "-" if found is None else told(found, arm)


def told(found: Paired, arm: Sequence[ArmRecord]) -> str:
    """Return a difference of an arm, and its seeds where it is not of all."""
    seeds = ", ".join(map(str, found.seeds))
    return difference(found) + (f", seed {seeds}" if len(found.seeds) < len(arm) else "")


def not_run(records: Sequence[ArmRecord]) -> list[str]:
    """Return what of the plan has no record, in words."""
    done = {(one.preset, one.arm, one.seed) for one in records}
    found: dict[str, list[str]] = {}
    for preset, arm, seed in PLAN:
        if (preset, arm, seed) not in done:
            found.setdefault(f"{preset} `{arm}`", []).append(str(seed))
    return [f"{name} ({', '.join(seeds)})" for name, seeds in found.items()]


def leaderboard_row(records: Sequence[ArmRecord], marks: Marks, *, store: str) -> LeaderboardRow:
    """Return the row of the arm `alphazero`, of the training with most seeds, then the longest.

    Args:
        records: of one place.
        marks: of the same place.
        store: its name on the leaderboard.
    """
    arm = max((x for x in arms_of(records) if x[0].arm == "alphazero"), key=len)
    found = paired(arm, as_often(arm, marks.volumes[REFERENCE]))
    assert found is not None
    ssim = [mean_ssim(one.volumes) for one in arm]
    return LeaderboardRow(
        store=store,
        horizon=marks.preset,
        method="alphazero",
        n_seeds=len(arm),
        ssim_mean=float(np.mean(ssim)),
        ssim_std=std_over_seeds(ssim),
        gap_closed=None,
        difference_to_fixed=found.difference,
        interval=found.interval,
        command=_evaluation(arm),
    )


def _evaluation(arm: Sequence[ArmRecord]) -> str:
    """Return the command that evaluates all seeds of an arm."""
    words = arm[0].evaluates.split(" --policy ")
    own = [one.evaluates.split(" --policy ")[1] for one in arm]
    return " --policy ".join([words[0], *own, *words[2:]])
