"""Records of joint trainings, what they say of each other, and their rows on the leaderboard.

`joint.py` makes them, one per arm and seed.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from leaderboard import LeaderboardRow
from paired import Paired, Volume, paired
from tables import difference, markdown, number, spread

from kscout.config import JointConfig, read
from kscout.errors import ConfigError
from kscout.evaluation.statistics import std_over_seeds
from kscout.evaluation.summaries.summarize import gap_closed

RECORDS = Path(__file__).with_name("joint_results")
ARMS = ("fixed", "dense", "random", "loupe", "straight-through")
REFERENCE = "fixed"


@final
@dataclass(frozen=True)
class Horizon:
    """Where arms are compared."""

    store: str
    """Its name on the leaderboard."""
    start: str
    """The network that all arms start from."""
    n_initial: int
    steps: int
    source: str = "knee"
    """The folder of its slices below `stores`."""


HORIZONS = {
    "knee-base": Horizon("knee-paper-size", "knee-unet", 16, 16),
    "knee-8x": Horizon("knee-paper-size", "knee-unet", 8, 8),
    "knee-long": Horizon("knee-paper-size", "knee-unet", 4, 28),
    "heads-base": Horizon("heads-coarse", "heads-unet", 16, 16, "heads-coarse"),
}
SEEDS = (0, 1, 2)
_AS_STORED = {"flips": False, "zoom": 1.0, "turn": 0.0, "bend": 0.0}
"""Settings of slices that are learned from as they are; the oldest records do not tell them."""
_VARIED = {"flips": "mirrored", "zoom": "magnified", "turn": "turned", "bend": "bent"}
_PLAIN = " --set training.flips=false"
LABELS = {
    None: ("", ""),
    "plain": (", not mirrored", f"{_PLAIN} --label plain"),
    "fresh": (
        ", not mirrored, with the masks of its newest order alone",
        f"{_PLAIN} --set training.fresh_pool=true --label fresh",
    ),
    "keep": (
        ", not mirrored, whose order stays until a better one is fitted",
        f"{_PLAIN} --set training.keep_better=true --label keep",
    ),
    "once": (
        ", not mirrored, whose labels are used once",
        f"{_PLAIN} --set training.n_repeats=0 --set training.sampler_every=5 "
        "--set training.sampler_average=0.98 --label once",
    ),
    "varied": (
        ", turned and bent, too",
        " --set training.turn=8 --set training.bend=2 --label varied",
    ),
    "32": (" with 32 channels", " --channels 32 --start nothing"),
}
"""What a label says of an arm, and what `joint.py` is told for it."""
PLAN = [
    *((h, arm, None) for h in ("knee-base", "knee-8x") for arm in ARMS[:2]),
    *(("knee-base", arm, "plain") for arm in ("fixed", *ARMS[2:])),
    *(("knee-base", "fixed", label) for label in ("keep", "fresh")),
    ("knee-base", "dense", "once"),
    *(("knee-8x", arm, "plain") for arm in ARMS[:2]),
    ("knee-8x", "fixed", "keep"),
    *((h, arm, None) for h in ("heads-base", "knee-long") for arm in ARMS[:2]),
    *(("knee-base", arm, "32") for arm in ARMS[:2]),
    *((h, arm, None) for h in ("knee-base", "knee-8x") for arm in ARMS[2:]),
    *(("knee-8x", arm, "varied") for arm in ARMS[:2]),
    ("knee-base", "dense", "plain"),
]
"""What is run with every seed, the most telling first: where, by which sampler, under which label
where settings make another comparison."""
Group = dict[str, list["JointRecord"]]
"""The records of a comparison by the name of their arm, one for each seed."""


@final
@dataclass(frozen=True)
class Bounds:
    """SSIM of the arm and of oracles on its own network, over some of the test slices."""

    n_slices: int
    arm: float
    fixed: float
    na_oracle: float
    oracle: float


@final
@dataclass(frozen=True)
class JointRecord:
    """What one arm reached with one seed."""

    arm: str
    seed: int
    horizon: str
    n_updates: int
    n_sampler_updates: int
    n_slices_seen: int
    n_parameters: int
    sampler_share: float
    train_s: float
    ssim: float
    psnr: float
    curve: tuple[float, ...]
    """SSIM by moment, the start first."""
    psnr_curve: tuple[float, ...]
    area: float
    """Mean of the curve over moments."""
    volumes: dict[str, Volume]
    commands: tuple[str, str]
    """What trains and what evaluates."""
    settings: dict[str, Any]
    """Those of the run, without method, policy and seed: only records that agree are compared."""
    device: str
    commit: str | None = None
    bounds: Bounds | None = None
    sampler: dict[str, Any] = field(default_factory=dict)
    """Settings of the sampler's own."""
    label: str | None = None
    """What tells its file and folder from those of the same arm and seed."""
    validation: tuple[float, ...] = ()
    """SSIM of the validation slices after each epoch; the oldest records do not tell."""
    fitted_after: dict[str, Volume] = field(default_factory=dict)
    """Scores, by volume, of a fixed order fitted for its network as it ended; older records tell
    them in `bounds` alone."""

    @property
    def stem(self) -> str:
        """Return what its files are called by."""
        arm = self.arm if self.label is None else f"{self.arm}-{self.label}"
        return f"{self.horizon}-{arm}-{self.seed}"

    @property
    def changed(self) -> dict[str, Any]:
        """Settings of the sampler's own that are not what they are by default today.

        What a record does not know was as it is by default, but labels were not repeated before
        they could be.
        """
        training = JointConfig.of(self.arm).training
        once = {"n_repeats": 0} if self.arm == "dense" else {}
        return {k: v for k, v in {**once, **self.sampler}.items() if v != getattr(training, k)}

    @property
    def command(self) -> str:
        """What trains it, whichever settings have become the default since."""
        typed, training = self.commands[0], JointConfig.of(self.arm).training
        slices = {k: v for k, v in self.slices.items() if v != getattr(training, k)}
        words = [
            f"--set training.{key}={json.dumps(value)}"
            for key, value in {**self.changed, **slices}.items()
            if f" training.{key}=" not in typed
        ]
        return " ".join([typed, *words])

    @property
    def key(self) -> tuple[str, str]:
        """Records of one key are compared."""
        told = {**self.settings, "training": {**self.settings.get("training", {})}}
        told["training"] |= self.slices
        told["n_train"] = self.n_train
        return self.horizon, json.dumps(told, sort_keys=True)

    @property
    def slices(self) -> dict[str, Any]:
        """Settings of how slices were varied."""
        told = self.settings.get("training", {})
        return {key: told.get(key, value) for key, value in _AS_STORED.items()}

    @property
    def varied(self) -> list[str]:
        """How slices were varied, in words."""
        told = [word for key, word in _VARIED.items() if self.slices[key] != _AS_STORED[key]]
        return told or ["not mirrored"]

    @property
    def n_train(self) -> int:
        """Training slices; the oldest records are of as many as the paper has."""
        return self.settings.get("n_train", 6959)

    @property
    def conditions(self) -> str:
        """What all arms of a comparison have in common, in words."""
        horizon = HORIZONS[self.horizon]
        columns = f"{self.horizon}, {horizon.n_initial} + {horizon.steps} columns"
        if "initial" in self.settings:
            columns += f" from {self.settings['initial']}"
        slices = ", ".join([f"{self.n_train:,} slices", *self.varied])
        network = f"{self.n_parameters / 1e6:.1f} million parameters"
        return f"{columns}, {network}, {slices}, {self.n_updates:,} updates"


def read_records(folder: Path = RECORDS) -> list[JointRecord]:
    """Return all records by horizon, those whose slices are varied as by default first."""
    files = sorted(folder.glob("*.json"))
    found = [read(JointRecord, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    order, default = [*HORIZONS], JointConfig.of(REFERENCE).training

    def place(one: JointRecord) -> tuple[int, bool, int, int]:
        is_other = any(value != getattr(default, key) for key, value in one.slices.items())
        return order.index(one.horizon), is_other, ARMS.index(one.arm), one.seed

    return sorted(found, key=place)


def groups_of(records: Sequence[JointRecord]) -> list[Group]:
    """Return the records of each comparison by arm; what is not compared stands apart.

    The name of an arm tells the settings of its sampler that are not default.
    """
    found: dict[tuple[str, str], list[JointRecord]] = {}
    for one in records:
        found.setdefault(one.key, []).append(one)
    return [_by_arm(group) for group in found.values()]


def _by_arm(records: Sequence[JointRecord]) -> Group:
    found: Group = {}
    for one in records:
        words = [f"{key}={json.dumps(value)}" for key, value in sorted(one.changed.items())]
        own = found.setdefault(", ".join([one.arm, *words]), [])
        twin = next((x for x in own if x.seed == one.seed), None)
        if twin is not None:
            raise ConfigError(
                f"{twin.stem} and {one.stem} are of the same arm, settings and seed; remove one"
            )
        own.append(one)
    return found


def leading(group: Group, arm: str) -> list[JointRecord]:
    """Return what stands for an arm: of several settings those of most seeds, then the best."""
    own = [records for records in group.values() if records[0].arm == arm]
    return max(own, key=lambda x: (len(x), np.mean([one.ssim for one in x])), default=[])


def name_of(group: Group, arm: Sequence[JointRecord]) -> str:
    """Return what an arm of a comparison is called, as it is shown."""
    return shown(next(name for name, own in group.items() if own is arm))


def shown(name: str) -> str:
    """Return the name of an arm for a page, where long lists of settings can be broken."""
    arm, _, settings = name.partition(", ")
    return f"`{arm}` ({settings})" if settings else f"`{arm}`"


def table(records: Sequence[JointRecord] | None = None) -> str:
    """Return the table of all comparisons, and what was not run; of all records by default."""
    records = read_records() if records is None else records
    head = (
        *("arm", "seeds", "SSIM", "minus the reference, 95 % interval", "area", "PSNR"),
        *("oracle on its network", "time, sampler's share"),
    )
    told = by_comparison(
        groups_of(records), head, lambda group: [_line(name, group) for name in group]
    )
    missing = ", ".join(not_run(records)) or "nothing of the plan"
    return f"{told}\nNot run, with mirrored slices where nothing else is said: {missing}.\n"


def by_comparison(
    groups: Sequence[Group],
    head: Sequence[str],
    lines: Callable[[Group], Sequence[Sequence[str]]],
) -> str:
    """Return a table for each comparison, under what its arms have in common."""
    parts = [(next(iter(group.values()))[0].conditions, lines(group)) for group in groups]
    return "\n".join(f"{place}:\n\n{markdown(head, own)}" for place, own in parts if own)


def not_run(records: Sequence[JointRecord]) -> list[str]:
    """Return what of the plan has no record, in words."""
    return [
        f"{horizon} `{arm}`{LABELS[label][0]} ({', '.join(map(str, seeds))})"
        for horizon, arm, label, seeds in _left(records)
    ]


def commands_left(records: Sequence[JointRecord]) -> list[str]:
    """Return what runs the rest of the plan, a command for each record, the most telling first."""
    return [
        f"python benchmarks/joint.py --horizon {horizon} --arm {arm} --seed {seed} "
        f"--data stores/{HORIZONS[horizon].source}{LABELS[label][1]}"
        for horizon, arm, label, seeds in _left(records)
        for seed in seeds
    ]


def _left(records: Sequence[JointRecord]) -> list[tuple[str, str, str | None, list[int]]]:
    done = {(one.horizon, one.arm, one.label, one.seed) for one in records}
    found = [(*which, [seed for seed in SEEDS if (*which, seed) not in done]) for which in PLAN]
    return [one for one in found if one[-1]]


def _line(name: str, group: Group) -> tuple[str, ...]:
    arm = group[name]
    reference = leading(group, REFERENCE)
    found = paired(arm, reference)
    bounds = [one.bounds for one in arm if one.bounds is not None]
    oracle = "-" if not bounds else number(float(np.mean([x.oracle for x in bounds])))
    ssim = [one.ssim for one in arm]
    minutes = np.mean([one.train_s for one in arm]) / 60
    share = np.mean([one.sampler_share for one in arm])
    return (
        shown(name),
        ", ".join(str(one.seed) for one in arm),
        spread(float(np.mean(ssim)), std_over_seeds(ssim)),
        "reference" if arm is reference else "-" if found is None else difference(found),
        number(float(np.mean([one.area for one in arm]))),
        f"{np.mean([one.psnr for one in arm]):.2f}",
        oracle,
        f"{minutes:.1f} min, {100 * share:.0f} %",
    )


def leaderboard_rows(records: Sequence[JointRecord]) -> list[LeaderboardRow]:
    """Return a row for each arm of a comparison of each horizon, best first.

    It is the hardest comparison, where an arm stands beside the fixed order at all.
    """
    rows: list[LeaderboardRow] = []
    for group in hardest(records).values():
        reference, part = leading(group, REFERENCE), []
        for arm in (leading(group, name) for name in ARMS):
            found = paired(arm, reference)
            if found is None:
                continue
            # An arm's row is of the seeds that its difference is of. The reference's is of all its
            # seeds: where it has more than an arm, their means differ by something else.
            own = [one for one in arm if one.seed in found.seeds]
            part.append(_row(own, found))
        rows += sorted(part, key=lambda x: -x.ssim_mean)
    return rows


def hardest(records: Sequence[JointRecord], arm: str | None = None) -> dict[str, Group]:
    """Return, by horizon, the comparison whose fixed order scores highest: the hardest to beat.

    Args:
        records: of all comparisons.
        arm: that must stand beside the fixed order; None, any.
    """
    found: dict[str, Group] = {}
    groups = sorted(groups_of(records), key=lambda group: -_reference_ssim(group))
    for group in groups:
        arms = {own[0].arm for own in group.values()}
        if REFERENCE in arms and (len(arms) > 1 if arm is None else arm in arms):
            found.setdefault(next(iter(group.values()))[0].horizon, group)
    return {name: found[name] for name in HORIZONS if name in found}


def _reference_ssim(group: Group) -> float:
    return float(np.mean([one.ssim for one in leading(group, REFERENCE)] or [-np.inf]))


def _row(arm: Sequence[JointRecord], found: Paired) -> LeaderboardRow:
    first, ssim = arm[0], [one.ssim for one in arm]
    bounds = [one.bounds for one in arm if one.bounds is not None]
    means = [
        float(np.mean([getattr(x, k) for x in bounds])) for k in ("arm", "na_oracle", "oracle")
    ]
    is_reference = first.arm == REFERENCE
    return LeaderboardRow(
        store=HORIZONS[first.horizon].store,
        horizon=first.horizon,
        method=first.arm,
        n_seeds=len(arm),
        ssim_mean=float(np.mean(ssim)),
        ssim_std=std_over_seeds(ssim),
        gap_closed=gap_closed(*means) if bounds else None,
        difference_to_fixed=0.0 if is_reference else found.difference,
        interval=None if is_reference else found.interval,
        command=first.commands[1],
        reconstruction="joint",
    )
