"""What the records of joint trainings say, in sentences of docs/joint.md.

Every sentence follows from the records; where they do not decide, it says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from joint_records import (
    HORIZONS,
    RECORDS,
    REFERENCE,
    Group,
    JointRecord,
    groups_of,
    hardest,
    leading,
    name_of,
    read_records,
    shown,
)
from leaderboard import frozen_rows
from paired import Paired, mean_ssim, paired
from scipy.stats import t
from tables import difference, markdown, number

from kscout.evaluation.statistics import std_over_seeds

ADAPTIVE = "dense"
GOAL = 0.002
"""SSIM by which adapting was hoped to pay."""


def verdict(found: Paired, by_seed: Sequence[float], *, adds: bool | None = None) -> str:
    """Say whether adapting pays, by the interval of the difference, its size, and its seeds.

    Args:
        found: the adaptive arm minus the fixed one.
        by_seed: the same for each seed.
        adds: whether choosing anew is better than a fixed order on the arm's own network: a network
            may lead or trail whatever chooses its columns. None where that was not measured.
    """
    if found.interval is None:
        return "one volume decides nothing"
    low, high = found.interval
    if low <= 0 <= high:
        return "no difference is shown"
    if not _agree(by_seed):
        return "seeds differ too much to decide"
    alone = " with this one seed" if len(by_seed) == 1 else ""
    if high < 0 and adds:
        return f"the arm trails by its network{alone}, though choosing anew adds to it"
    if high < 0:
        return f"adapting costs{alone}"
    if adds is False:
        return f"the arm leads by its network{alone}; that choosing anew adds to it is not shown"
    short = "" if found.difference >= GOAL else f", by less than {GOAL:g}"
    return f"adapting pays{alone}{short}"


def _agree(by_seed: Sequence[float]) -> bool:
    """Say whether seeds, as draws of many, have a mean whose 95 % interval lies off zero.

    One seed alone has none, and agrees with itself.
    """
    if len(by_seed) < 2:
        return True
    error = float(np.std(by_seed, ddof=1)) / len(by_seed) ** 0.5
    return abs(mean(by_seed)) > float(t.ppf(0.975, len(by_seed) - 1)) * error


def answer(folder: Path = RECORDS) -> str:
    """Return whether adapting pays beside the strongest fixed order of each horizon, as a table."""
    minus = f"`{ADAPTIVE}` minus `{REFERENCE}`"
    head = ("", minus, "by seed", "choosing anew adds", "its network leads by", "")
    lines = []
    for horizon, group in hardest(read_records(folder), ADAPTIVE).items():
        arm, reference = (leading(group, name) for name in (ADAPTIVE, REFERENCE))
        found = paired(arm, reference)
        if found is None:
            continue
        judged, where = Judged.of(arm, reference, found), HORIZONS[horizon]
        parts = [] if judged.parts is None else [judged.parts.chosen, judged.parts.network]
        told = [number(mean(values), is_signed=True) for values in parts] or ["-", "-"]
        place = [f"`{horizon}`, {where.n_initial} + {where.steps}", *arm[0].varied]
        scores = (difference(found), of_seeds(judged.by_seed), *told)
        lines.append((", ".join(place), *scores, judged.verdict))
    return markdown(head, lines)


def findings(folder: Path = RECORDS) -> str:
    """Return a line for each comparison of the adaptive arm with the refitted fixed order."""
    lines, groups = [], groups_of(read_records(folder))
    for group in groups:
        for name, arm in group.items():
            if arm[0].arm == ADAPTIVE and paired(arm, leading(group, REFERENCE)) is not None:
                lines.append(_finding(name, group))
        if {arm[0].arm for arm in group.values()} == {REFERENCE}:
            lines.append(_alone(group, groups))
    if not lines:
        return f"No pair of `{ADAPTIVE}` and `{REFERENCE}` has been run yet.\n"
    return "".join(f"- {line}\n" for line in lines)


def _finding(name: str, group: Group) -> str:
    arm, reference = group[name], leading(group, REFERENCE)
    other = name_of(group, reference)
    found = paired(arm, reference)
    assert found is not None
    pairs = [_of_seed(arm, reference, seed) for seed in found.seeds]
    judged = Judged.of(arm, reference, found)
    area = number(mean([one.area - two.area for one, two in pairs]), is_signed=True)
    psnr = mean([one.psnr - two.psnr for one, two in pairs])
    told = (
        f"{shown(name)} minus {other} {difference(found)} over {told_seeds(len(pairs))} "
        f"({_spread_over_seeds(judged.by_seed)}): {judged.verdict}. In area {area}, in PSNR "
        f"{psnr:+.2f} dB."
    )
    others = [x for x in (_parted(judged.parts), _beside_frozen(reference)) if x]
    more = [*_other_references(name, group), *others]
    return "\n    - ".join(
        [f"**{arm[0].conditions}.** {told}{_beyond_its_best(other, reference)}", *more]
    )


def _alone(group: Group, groups: Sequence[Group]) -> str:
    """Tell of a fixed order that nothing stands beside, and how it does beside other settings."""
    arm = leading(group, REFERENCE)
    told = f"`{REFERENCE}` alone was run, {number(mean([one.ssim for one in arm]))} "
    told += f"over {told_seeds(len(arm))}; whether adapting pays here is not known."
    for other in groups:
        rival = leading(other, REFERENCE)
        if other is group or not rival or rival[0].horizon != arm[0].horizon:
            continue
        found = paired(arm, rival)
        if found is None:
            continue
        # By the seeds that were compared: others may be higher or lower on their own.
        scores = [_of_seeds(own, found.seeds) for own in other.values()]
        best = max(mean(values) for values in scores if len(values) == len(found.seeds))
        above = "above" if mean(_of_seeds(arm, found.seeds)) > best else "below"
        leads = _spread_over_seeds(_leads(arm, rival, found))
        alike = f"the same {len(found.seeds)} seeds" if len(found.seeds) > 1 else "the same seed"
        told += (
            f"\n    - It is {difference(found)} from `{REFERENCE}` under {rival[0].conditions}, by "
            f"seed {leads}, and {above} the best arm there with {alike} ({number(best)})."
        )
    return f"**{arm[0].conditions}.** {told}"


def _of_seeds(arm: Sequence[JointRecord], seeds: Sequence[int]) -> list[float]:
    """Return the scores of some seeds."""
    return [one.ssim for one in arm if one.seed in seeds]


def _spread_over_seeds(values: Sequence[float]) -> str:
    """Return the difference of each seed, and the standard error of their mean."""
    told, std = of_seeds(values), std_over_seeds(values)
    return told if std is None else f"{told}; standard error {number(std / len(values) ** 0.5)}"


def of_seeds(values: Sequence[float]) -> str:
    """Return the difference of each seed."""
    return ", ".join(number(x, is_signed=True) for x in values)


def _other_references(name: str, group: Group) -> list[str]:
    """Compare with the fixed arms that are not the reference, and say what that is worth."""
    reference, told = leading(group, REFERENCE), []
    for other, own in group.items():
        found = paired(group[name], own)
        beside = paired(reference, own)
        if own[0].arm != REFERENCE or own is reference or found is None or beside is None:
            continue
        kind = "weaker" if beside.difference > 0 else "stronger"
        told.append(
            f"Over the {kind} {shown(other)} it is {difference(found)}, "
            f"{told_seeds(len(found.seeds))}: {name_of(group, reference)} minus {shown(other)} is "
            f"{difference(beside)}, by seed "
            f"{_spread_over_seeds(_leads(reference, own, beside))}."
            f"{_beyond_its_best(shown(other), own)}"
        )
    return told


def _beyond_its_best(name: str, arm: Sequence[JointRecord]) -> str:
    """Say how far the last epoch, which is compared, is below the best by validation."""
    falls = [max(one.validation) - one.validation[-1] for one in arm if one.validation]
    if not falls or not max(falls):
        return ""
    told = ", ".join(number(x) for x in falls)
    return f" On validation slices {name} ends {told} below its best epoch."


def _leads(
    arm: Sequence[JointRecord], reference: Sequence[JointRecord], found: Paired
) -> list[float]:
    """Return by how much an arm leads, for each seed that both have."""
    pairs = [_of_seed(arm, reference, seed) for seed in found.seeds]
    return [one.ssim - two.ssim for one, two in pairs]


def _of_seed(
    arm: Sequence[JointRecord], reference: Sequence[JointRecord], seed: int
) -> tuple[JointRecord, JointRecord]:
    one, two = (next(x for x in part if x.seed == seed) for part in (arm, reference))
    return one, two


@final
@dataclass(frozen=True)
class _Parts:
    """A difference of two arms, on some of the slices, and what it consists of, by seed."""

    n_slices: int
    whole: list[float]
    chosen: list[float]
    """What choosing anew is worth on the arm's network, over an order fitted for it."""
    network: list[float]
    """What that network leads by with such an order."""
    intervals: tuple[Paired, Paired] | None = None
    """Of both parts, where scores are known by volume."""


@final
@dataclass(frozen=True)
class Judged:
    """Whether adapting pays by all seeds of an arm."""

    by_seed: list[float]
    """The difference of each seed."""
    parts: _Parts | None
    verdict: str

    @classmethod
    def of(
        cls, arm: Sequence[JointRecord], reference: Sequence[JointRecord], found: Paired
    ) -> "Judged":
        """Judge the difference of an arm from the fixed one."""
        by_seed = _leads(arm, reference, found)
        parts = _parts([_of_seed(arm, reference, seed) for seed in found.seeds])
        return cls(by_seed, parts, verdict(found, by_seed, adds=_adds(parts)))


def _parts(pairs: Sequence[tuple[JointRecord, JointRecord]]) -> _Parts | None:
    """Part a difference, by all test slices where every record tells of them; None without any."""
    if all(one.fitted_after for one, _ in pairs):
        own, others = ([pair[i] for pair in pairs] for i in (0, 1))
        after = [replace(one, volumes=one.fitted_after) for one in own]
        chosen, network = paired(own, after), paired(after, others)
        assert chosen is not None and network is not None
        means = [[mean_ssim(x.volumes) for x in part] for part in (own, after, others)]
        steps = [
            [x - y for x, y in zip(means[i], means[j], strict=True)]
            for i, j in ((0, 2), (0, 1), (1, 2))
        ]
        n_slices = sum(one.n_slices for one in own[0].volumes.values())
        return _Parts(n_slices, *steps, (chosen, network))
    bounds = [
        (one.bounds, two.bounds)
        for one, two in pairs
        if one.bounds is not None and two.bounds is not None
    ]
    if not bounds:
        return None
    return _Parts(
        bounds[0][0].n_slices,
        [own.arm - other.arm for own, other in bounds],
        [own.arm - own.fixed for own, _ in bounds],
        [own.fixed - other.arm for own, other in bounds],
    )


def _adds(parts: _Parts | None) -> bool | None:
    """Say whether choosing anew is shown to add to what a network reaches; None, unmeasured."""
    if parts is None:
        return None
    interval = None if parts.intervals is None else parts.intervals[0].interval
    return all(x > 0 for x in parts.chosen) and (interval is None or interval[0] > 0)


def _parted(parts: _Parts | None) -> str:
    """Tell the difference in parts: what choosing anew is worth, and what the network is."""
    if parts is None:
        return ""
    means = [mean(values) for values in (parts.whole, parts.chosen, parts.network)]
    whole, chosen, rest = (number(mean, is_signed=True) for mean in means)
    if parts.intervals is not None:
        chosen, rest = (difference(one) for one in parts.intervals)
    short = f"; less than {GOAL:g}" if means[1] < GOAL <= means[0] else ""
    return (
        f"Of {whole} on {parts.n_slices} slices, {chosen} ({of_seeds(parts.chosen)}{short}) is "
        f"what choosing anew is worth on the network of `{ADAPTIVE}`, over an order fitted for "
        f"that network, and {rest} ({of_seeds(parts.network)}) is what that network leads by with "
        "a fixed order."
    )


def _beside_frozen(reference: Sequence[JointRecord]) -> str:
    """Compare the refitted fixed order with what the frozen network can reach at all."""
    first = reference[0]
    place = (HORIZONS[first.horizon].store, first.horizon)
    frozen = {x.method: x.ssim_mean for x in frozen_rows() if (x.store, x.horizon) == place}
    if not {REFERENCE, "oracle"} <= frozen.keys():
        return ""
    own = mean([one.ssim for one in reference])
    bounds = frozen["oracle"] > frozen[REFERENCE]
    beyond = "above" if own > frozen["oracle" if bounds else REFERENCE] else "below"
    if not bounds:
        return (
            f"A fixed order with its own network reaches {number(own)}, {beyond} one with the "
            f"frozen network ({number(frozen[REFERENCE])}). The oracle there is no bound "
            f"({number(frozen['oracle'])}): it sees the truth, but one step ahead alone."
        )
    return (
        f"A fixed order with its own network reaches {number(own)}, {beyond} the frozen network's "
        f"oracle, which sees the truth ({number(frozen['oracle'])}; a fixed order there "
        f"{number(frozen[REFERENCE])})."
    )


def mean(values: Sequence[float]) -> float:
    """Return the mean over seeds."""
    return float(np.mean(values))


def told_seeds(n_seeds: int) -> str:
    """Return a number of seeds in words."""
    return f"{n_seeds} seed{'s' if n_seeds > 1 else ''}"
