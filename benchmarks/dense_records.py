"""Records of dense gains as tables of docs/dense.md: arms on a store, and heads by subject.

`dense.py` makes them into dense_results, `leave_one_out.py` into heads_results. Records of a whole
test set may join the leaderboard, those of several seeds as one row:

    python benchmarks/dense_records.py benchmarks/dense_results/NAME*.json --method NAME \
        --source RUN/seed-0 --source RUN/seed-1
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, final

import numpy as np
from leaderboard import BOUNDS, REFERENCE, STORES, LeaderboardRow, join
from tables import markdown, number, spread

from kscout.config import ACQUISITIONS, read
from kscout.errors import ConfigError
from kscout.evaluation.statistics import std_over_seeds
from kscout.evaluation.summaries.summarize import gap_closed
from kscout.zoo import ZOO

RECORDS = Path(__file__).with_name("dense_results")
HEADS = Path(__file__).with_name("heads_results")
WITHOUT = "heads-without-"
OWN = ", own reconstruction"
"""Added to what was trained with a reconstruction that has not seen the head that was left out."""
PLAIN = "plain-"
NOT_RUN = "Not run yet.\n"
_ARM = "column"
"""What others are ablations of."""
PLAN = [
    *(("knee-4x", "knee-base", "column", seed) for seed in (0, 1, 2)),
    *(("knee-4x", "knee-base", "large", seed) for seed in (0, 1, 2)),
    *(("knee-4x", "knee-long", "completion", seed) for seed in (0, 1, 2)),
    *(("knee", "knee-base", "column", seed) for seed in (0, 1, 2)),
    *(("knee", "knee-base", arm, 0) for arm in ("slopes", "no-repeats", "conv")),
    *(("knee", "knee-base", arm, 0) for arm in ("unmirrored", "random-labels", "no-prior")),
    *(("knee", "knee-base", arm, 0) for arm in ("half-labels", "best-labels", "paired")),
]
"""What is run, the most telling first."""


@final
@dataclass(frozen=True)
class DenseRecord:
    """What one arm reached with one seed, the best column at each step."""

    arm: str
    seed: int
    data: str
    preset: str
    reconstructor: str
    minutes: float
    """Asked for, shared by all seeds in lockstep; 0 where epochs were asked for."""
    changes: tuple[str, ...]
    n_epochs: int
    n_lockstep: int
    train_s: float
    n_reconstructions: int
    """Of all seeds in lockstep."""
    val_ssim: tuple[float, ...]
    n_slices: int
    n_volumes: int
    ssim: float
    marks: dict[str, float]
    """SSIM of fixed order, NA oracle and oracle on the same slices."""
    gap_closed: float | None
    difference_to_fixed: float
    interval: tuple[float, float] | None
    device: str
    n_parameters: int
    test: str = ""
    """Store whose test slices were scored, where it is not `data`."""
    n_draws: int = 0
    """Images that a member draws; 0 where none does, and where it was not noted."""
    start: str = ""
    """Trained policy that it went on from, whose minutes are not counted."""

    @property
    def asked(self) -> tuple[float, int]:
        """How long it was to train: minutes, or epochs where those were asked for."""
        return (self.minutes, 0) if self.minutes else (0.0, self.n_epochs)

    @property
    def kind(self) -> tuple[str, str, str, tuple[float, int], str, tuple[str, ...], str]:
        """Records of one kind differ in their seed."""
        where = (self.data, self.preset, self.reconstructor)
        return *where, self.asked, self.arm, unseeded(self.changes), self.start

    @property
    def name(self) -> str:
        """What was trained; of more than two members, of how many; with what reconstruction."""
        members = [x.partition("=")[2] for x in self.changes if x.startswith("policy.members=")]
        n_members = len(json.loads(members[0])) if members else 0
        words = f"{self.arm} of {n_members}" if n_members > 2 else self.arm
        return words if self.reconstructor in ZOO else f"{words}{OWN}"

    @property
    def task(self) -> tuple[str, str, tuple[float, int], int, str]:
        """Arms with the same are compared."""
        return self.data, self.preset, self.asked, self.seed, self.start


def unseeded(changes: Sequence[str]) -> tuple[str, ...]:
    """Return settings as all seeds have them, in one order, wherever their runs lie.

    A third member, of the arm `zoom`, is the same network for all seeds.
    """
    placed = (re.sub(r'"[^"]*/(?=runs/)', '"', change) for change in changes)
    own = r'"(?!runs/zoom-)([^"]*[/-]seed-?)\d+(?=")'
    return tuple(sorted(re.sub(own, r'"\1N', change) for change in placed))


@final
@dataclass(frozen=True)
class PlainRecord:
    """What a policy reached on a file that was imported as it is."""

    file: str
    how: str
    run: str
    n_slices: int
    ssim: dict[str, float]
    difference_to_fixed: float

    @property
    def arm(self) -> str:
        """What the policy is."""
        return self.run.partition("-heads-")[0]


def read_records(folder: Path = RECORDS) -> list[DenseRecord]:
    """Return all records of arms in a folder and below, those of one kind together."""
    files = [x for x in sorted(folder.rglob("*-seed*.json")) if not x.name.startswith(PLAIN)]
    found = [read(DenseRecord, content(file)) for file in files]
    return sorted(found, key=_place)


def _place(record: DenseRecord) -> tuple[object, ...]:
    is_own = record.reconstructor not in ZOO
    return record.data, record.preset, is_own, -record.minutes, *_rank(record)


def _rank(record: DenseRecord) -> tuple[int, str, tuple[str, ...], str, int]:
    order = list(dict.fromkeys(arm for _, _, arm, _ in PLAN))
    known = order.index(record.arm) if record.arm in order else len(order)
    return known, record.arm, unseeded(record.changes), record.start, record.seed


def read_plain(folder: Path = HEADS) -> list[PlainRecord]:
    """Return all records of files that were imported as they are."""
    found = [content(file) for file in sorted(folder.glob(f"{PLAIN}*.json"))]
    return [
        read(PlainRecord, {("how" if key == "import" else key): one[key] for key in one})
        for one in found
    ]


def content(file: Path) -> Any:  # noqa: ANN401
    """Return what a JSON file holds."""
    return json.loads(file.read_text(encoding="utf-8"))


def kinds_of(records: Sequence[DenseRecord]) -> list[list[DenseRecord]]:
    """Return the seeds of each kind, as `read_records` orders them."""
    return [list(seeds) for _, seeds in groupby(records, lambda one: one.kind)]


def minus(seeds: Sequence[DenseRecord]) -> str:
    """Return the mean difference to the fixed order, and the ends of all seeds' intervals."""
    text = number(float(np.mean([one.difference_to_fixed for one in seeds])), is_signed=True)
    ends = [one.interval for one in seeds if one.interval is not None]
    if len(ends) < len(seeds):
        return text
    return f"{text} ({number(min(x[0] for x in ends))} to {number(max(x[1] for x in ends))})"


def share(seeds: Sequence[DenseRecord]) -> str:
    """Return the mean share of the gap that was closed, and its range over seeds."""
    closed = [100 * one.gap_closed for one in seeds if one.gap_closed is not None]
    if len(closed) < len(seeds):
        return "-"
    spread_out = f" ({min(closed):.0f} to {max(closed):.0f})" if len(closed) > 1 else ""
    return f"{np.mean(closed):.0f} %{spread_out}"


def table(folder: Path = RECORDS) -> str:
    """Return what every arm of dense gains reached, and what was not run."""
    head = (
        *("store, acquisition", "arm", "seeds", "SSIM", "gap closed", "minus fixed", "fixed"),
        *("NA oracle", "oracle", "minutes", "epochs", "parameters", "columns tried a second"),
    )
    records = [one for one in read_records(folder) if not imagines(one)]
    text = markdown(head, [_line(seeds) for seeds in kinds_of(records)])
    told = ", ".join(against(records)) or "not run"
    return (
        f"{text}\n{over_lines(records)}Minus `{_ARM}` of the same store, seed and minutes or "
        f"epochs that were asked for: {told}.\n\n{not_run(PLAN, records)}"
    )


def over_lines(records: Sequence[DenseRecord]) -> str:
    """Return what all seeds reached that trained alike, where the table has them apart.

    Minutes that were asked for may come to as many epochs as others asked for.
    """
    alike: dict[tuple[object, ...], list[DenseRecord]] = {}
    for one in records:
        data, preset, reconstructor, _, *trained = one.kind
        same = (data, one.test, preset, reconstructor, one.n_epochs, *trained)
        alike.setdefault(same, []).append(one)
    return "".join(
        f"{arm_words(seeds[0], seeds[0].changes)} on {where(seeds[0])}, {seeds[0].n_epochs} "
        f"epochs, over all {len(seeds)} seeds: {share(seeds)}, {minus(seeds)} minus fixed.\n\n"
        for seeds in alike.values()
        # One seed that came to as many epochs twice is no second seed.
        if len({one.kind for one in seeds}) > 1 and len({x.seed for x in seeds}) == len(seeds)
    )


def not_run(plan: Sequence[tuple[str, str, str, int]], records: Sequence[DenseRecord]) -> str:
    """Return a sentence of what a plan has and records do not."""
    done = {(one.data, one.preset, one.name, one.seed) for one in records}
    missing: dict[str, list[str]] = {}
    for data, preset, arm, seed in plan:
        if (data, preset, arm, seed) not in done:
            missing.setdefault(f"{data} {preset} `{arm}`", []).append(str(seed))
    words = [f"{name} ({', '.join(seeds)})" for name, seeds in missing.items()]
    return f"Not run: {', '.join(words) or 'nothing of the plan'}.\n"


def against(records: Sequence[DenseRecord], arm: str = _ARM) -> list[str]:
    """Return by how much other arms end above one that was trained as long, or below."""
    own = {one.task: one for one in records if one.arm == arm}
    others = [one for one in records if one.arm != arm and one.task in own]
    return [
        f"`{one.arm}` {number(one.ssim - own[one.task].ssim, is_signed=True)}" for one in others
    ]


def _line(seeds: Sequence[DenseRecord]) -> tuple[str, ...]:
    first, ssim = seeds[0], [one.ssim for one in seeds]
    rate = np.mean([one.n_reconstructions / one.train_s for one in seeds])
    return (
        *(where(first), arm_words(first, first.changes)),
        ", ".join(str(one.seed) for one in seeds),
        *(spread(float(np.mean(ssim)), std_over_seeds(ssim)), share(seeds), minus(seeds)),
        *(number(first.marks[name]) for name in ("fixed", "na-oracle", "oracle")),
        f"{np.mean([one.train_s for one in seeds]) / 60:.1f}",
        *(str(first.n_epochs), f"{first.n_parameters:,}", f"{rate:,.0f}"),
    )


def arm_words(record: DenseRecord, changes: Sequence[str] = ()) -> str:
    """Return what was trained, and what it went on from."""
    on = f", on from `{record.start}`" if record.start else ""
    return f"`{record.name}`{''.join(f' `{x}`' for x in unseeded(changes))}{on}"


def where(record: DenseRecord) -> str:
    """Return store and acquisition, and where another store was for test, that one too."""
    tested = f", tested on {record.test}" if record.test not in ("", record.data) else ""
    return f"{record.data}{tested}, {record.preset}"


def heads(folder: Path = HEADS) -> str:
    """Return a line for each head that was left out: as made, and as its file is."""
    head = (
        *("left out", "arm, seeds", "slices, volumes", "fixed", "SSIM", "gap closed"),
        "minus fixed",
        *("its file, cut: minus fixed", "its file, resampled: minus fixed"),
    )
    plain, lines = read_plain(folder), []
    for seeds in kinds_of(read_records(folder)):
        first = seeds[0]
        name, ssim = first.data.removeprefix(WITHOUT), [one.ssim for one in seeds]
        label = first.name.replace(" ", "-")
        runs = {f"{label}-{one.data}-{one.preset}-seed{one.seed}" for one in seeds}
        own = [one for one in plain if one.run in runs and _name(one.file) == name]
        lines.append(
            (
                name if first.preset == "knee-base" else f"{name}, {first.preset}",
                f"{arm_words(first)}, {', '.join(str(one.seed) for one in seeds)}",
                *(f"{first.n_slices}, {first.n_volumes}", number(first.marks["fixed"])),
                *(spread(float(np.mean(ssim)), std_over_seeds(ssim)), share(seeds), minus(seeds)),
                *(_plainly([one for one in own if one.how == how]) for how in ("cut", "resampled")),
            )
        )
    return markdown(head, lines) if lines else NOT_RUN


def imagines(record: DenseRecord) -> bool:
    """Return whether a record is of a policy that imagines."""
    return record.arm.startswith(("imagine", "weighed"))


def unseen(folder: Path = HEADS) -> str:
    """Return a line for each file that no policy has learned from, and each import of it."""
    left_out = {one.data.removeprefix(WITHOUT) for one in read_records(folder)}
    found = [one for one in read_plain(folder) if _name(one.file) not in left_out]
    keyed = sorted(found, key=lambda one: (one.arm, one.file, one.how))
    lines = []
    for (arm, file, how), part in groupby(keyed, lambda one: (one.arm, one.file, one.how)):
        own = list(part)
        fixed = float(np.mean([one.ssim["fixed"] for one in own]))
        told = (f"`{arm}`", file, how, str(own[0].n_slices), number(fixed), _plainly(own))
        lines.append(told)
    head = ("policy", "file", "import", "slices", "SSIM of fixed orders", "minus fixed")
    return markdown(head, lines) if lines else NOT_RUN


def _plainly(records: Sequence[PlainRecord]) -> str:
    """Return the mean difference over policies, and its range."""
    values = [one.difference_to_fixed for one in records]
    if not values:
        return "-"
    text = number(float(np.mean(values)), is_signed=True)
    if len(values) == 1:
        return text
    ends = [number(end, is_signed=True) for end in (min(values), max(values))]
    return f"{text} ({ends[0]} to {ends[1]} of {len(values)} policies)"


def _name(file: str) -> str:
    return file.removesuffix(".gz").removesuffix(".nii").removesuffix(".npy")


def leaderboard_row(
    seeds: Sequence[DenseRecord], method: str, sources: Sequence[str]
) -> LeaderboardRow:
    """Return what one method reached, as the leaderboard has it.

    Seeds were scored apart, so that the interval is from the lowest to the highest end of theirs.

    Args:
        seeds: records of a whole test set.
        method: its name there.
        sources: what the command that evaluates it again names as policies, one for each seed.
    """
    first = seeds[0]
    tests = {(x.test or x.data, x.preset, x.reconstructor, *x.marks.items()) for x in seeds}
    if len(tests) > 1 or not len({x.seed for x in seeds}) == len(seeds) == len(sources):
        raise ConfigError(
            f"{len(seeds)} records and {len(sources)} sources are not one method on one test set; "
            "give a record and a --source for each seed, all scored alike"
        )
    acquisition, data = ACQUISITIONS[first.preset], first.test or first.data
    policies = [one if one == method else f"{method}={one}" for one in sources]
    ssim = [one.ssim for one in seeds]
    mean, ends = float(np.mean(ssim)), [one.interval for one in seeds if one.interval is not None]
    return LeaderboardRow(
        store=STORES.get(data, data),
        horizon=first.preset,
        method=method,
        n_seeds=len(seeds),
        ssim_mean=mean,
        ssim_std=std_over_seeds(ssim),
        gap_closed=gap_closed(mean, *(first.marks[name] for name in BOUNDS)),
        difference_to_fixed=mean - first.marks[REFERENCE],
        interval=(min(x for x, _ in ends), max(x for _, x in ends)) if ends else None,
        command=(
            f"kscout evaluate --data stores/{data} --reconstructor {first.reconstructor} --split "
            f"test --n-initial {acquisition.n_initial} --steps {acquisition.horizon} "
            f"{' '.join(f'--policy {one}' for one in policies)} --policy {REFERENCE} --argmax "
            f"--protocol paper --reference {REFERENCE} --out results/{first.preset}/{method}"
        ),
    )


def main() -> None:
    """Join records to the leaderboard."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--method", required=True, help="its name on the leaderboard")
    parser.add_argument(
        "--source", action="append", required=True, help="run folder, or a name of the zoo"
    )
    wanted = parser.parse_args()
    seeds = [read(DenseRecord, content(file)) for file in wanted.records]
    row = leaderboard_row(seeds, wanted.method, wanted.source)
    join(row, seeds[0].marks[REFERENCE])


if __name__ == "__main__":
    main()
