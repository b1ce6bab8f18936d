"""What the records of AlphaZero say, in sentences of docs/alphazero.md.

Every sentence follows from the records; where they do not decide, it says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import final

import numpy as np
from alphazero_records import (
    CENTER,
    N_LAST,
    RECORDS,
    ArmRecord,
    Marks,
    arms_of,
    as_often,
    by_best,
    read_marks,
    read_records,
    same_time,
    told,
)
from paired import Paired, mean_ssim, paired
from tables import difference, number

from kscout.config import AlphaZeroTraining
from kscout.evaluation.summaries.paper_numbers import SSIM

_OWN, _OTHER = "alphazero", "greedy"
N_PAPER = AlphaZeroTraining().n_epochs
"""Rounds of the paper at most."""
N_QUARTER = 2
"""Rounds that a quarter of them must have for its mean to be told."""


def findings(folder: Path = RECORDS) -> str:
    """Return for each acquisition and time where AlphaZero stands, and why."""
    marks, records, lines = read_marks(folder), read_records(folder), []
    places = set()
    for arm in (x for x in arms_of(records) if x[0].arm == _OWN):
        place, greedy = arm[0].place, same_time(arm, records, _OTHER)
        lines.append(_standings(arm, marks.get(place), greedy))
        lines += _reasons(arm, greedy)
        # The longest training comes first, and decides.
        lines += [] if place in places else _zoo(arm, marks.get(place))
        places.add(place)
    return "".join(lines) or "AlphaZero has not been run yet.\n"


def answer(folder: Path = RECORDS) -> str:
    """Return whether AlphaZero ends below greedy of equal time, and what that comes from."""
    records = read_records(folder)
    lines = [
        _below(arm, greedy)
        for arm in arms_of(records)
        if arm[0].arm == _OWN and (greedy := same_time(arm, records, _OTHER))
    ]
    return "\n".join(lines) or "No greedy arm has had the time of AlphaZero yet.\n"


def _below(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    found, preset = paired(arm, greedy), arm[0].preset
    text = f"**{preset}: AlphaZero ends {standing(found)} greedy of equal time"
    text += "" if found is None else f", by {told(found, arm)}"
    if preset in SSIM:
        theirs, greedys = (SSIM[preset][name][0] for name in (_OWN, _OTHER))
        text += f"; the paper's by {number(theirs - greedys, is_signed=True)}"
    return f"{text}.** {_in_validation(arm, greedy)}{_by_pace(arm, greedy)}\n"


def _in_validation(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    """Say how far validation scores of equal seeds lie apart, at equal time and at equal cost."""
    pairs = [(own, other) for own in arm for other in greedy if own.seed == other.seed]
    if not pairs:
        return ""
    own = _mean([max(x.val_ssim) for x, _ in pairs])
    at_end = own - _mean([max(y.val_ssim) for _, y in pairs])
    text = f"In validation SSIM that is {number(at_end, is_signed=True)}"
    reached = [reached_after(y, x.n_made) for x, y in pairs]
    known = [value for value in reached if value is not None]
    if len(known) < len(reached):
        return f"{text}."
    after = number(own - _mean(known), is_signed=True)
    return f"{text}, and {after} from where greedy was after as many reconstructions."


def _by_pace(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    if not all(one.n_decisions for one in (*arm, *greedy)):
        return ""
    own, other = _Cost.of(arm), _Cost.of(greedy)
    return (
        f" Greedy makes {other.per_second / own.per_second:.0f} times as many reconstructions a "
        f"second, and takes {other.per_decision:.0f} for a decision instead of "
        f"{own.per_decision:.0f}: it learned from {other.n_decisions / own.n_decisions:.0f} times "
        "as many decisions."
    )


@final
@dataclass(frozen=True)
class _Cost:
    """What an arm did in its time, means over seeds."""

    n_decisions: float
    per_decision: float
    """Reconstructions."""
    per_second: float
    """Likewise."""

    @classmethod
    def of(cls, arm: Sequence[ArmRecord]) -> "_Cost":
        """Return the cost of an arm whose records tell of decisions."""
        n_decisions = _mean([one.n_decisions or 0 for one in arm])
        n_all = _mean([one.n_made for one in arm])
        return cls(n_decisions, n_all / n_decisions, n_all / _mean([x.train_s for x in arm]))


def study(folder: Path = RECORDS) -> str:
    """Return for each other arm what its constant is worth, at equal time and at equal cost."""
    records, lines = read_records(folder), []
    for arm in arms_of(records):
        main = same_time(arm, records, CENTER)
        if arm[0].arm not in (_OWN, _OTHER, CENTER) and main:
            lines.append(_constant(arm, main))
    return "".join(f"- {line}\n" for line in lines) or "No other constant has been tried yet.\n"


def standing(found: Paired | None) -> str:
    """Say where an arm stands by the interval of its difference."""
    if found is None or found.interval is None:
        return "not comparable with"
    low, high = found.interval
    return "above" if low > 0 else "below" if high < 0 else "not clearly apart from"


def _standings(arm: Sequence[ArmRecord], marks: Marks | None, greedy: Sequence[ArmRecord]) -> str:
    volumes = {} if marks is None else marks.volumes
    others = {f"`{name}`": as_often(arm, own) for name, own in volumes.items()}
    others |= {"the greedy arm of equal time": greedy} if greedy else {}
    places: dict[str, list[str]] = {}
    for name, other in others.items():
        found = paired(arm, other)
        by = "" if found is None else f" by {told(found, arm)}"
        places.setdefault(standing(found), []).append(f"{name}{by}")
    ends = "; ".join(f"{words} {', '.join(names)}" for words, names in places.items())
    first = arm[0]
    shared = dict.fromkeys(x.n_beside for x in (*arm, *greedy) if x.n_beside is not None)
    counts = " or ".join(map(str, shared))
    beside = f" beside {counts} other trainings on the GPU" if counts else ""
    seeds = f"{len(arm)} seed{'s' if len(arm) > 1 else ''}"
    head = f"**{first.preset}, {first.minutes:g} minutes{beside}, {seeds}.**"
    return f"- {head} AlphaZero ends {ends or 'beside nothing that was run'}.\n"


def _reasons(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> list[str]:
    """Say what may be behind it: rounds, cost of a label, what searches see, how decided it is."""
    reasons = [_curve(arm), _cost(arm, greedy), _foresight(arm, greedy), _labels(arm)]
    reasons += [_decided(arm, greedy), _adapts(arm, greedy)]
    return [f"    - {line}\n" for line in reasons if line]


def _zoo(arm: Sequence[ArmRecord], marks: Marks | None) -> list[str]:
    """Say whether it earns a place in the zoo beside the greedy policy that is there."""
    name = f"{arm[0].preset}-{_OTHER}"
    if marks is None or name not in marks.volumes:
        return []
    found = paired(arm, as_often(arm, marks.volumes[name]))
    is_above = standing(found) == "above"
    verdict = "It earns a place in the zoo" if is_above else "It earns no place in the zoo"
    return [f"    - {verdict}: it ends {standing(found)} `{name}`, which is there.\n"]


def _curve(arm: Sequence[ArmRecord]) -> str:
    first, best = (_mean([x(one.val_ssim) for one in arm]) for x in (lambda v: v[0], max))
    rounds = ", ".join(f"{one.best_round} of {one.n_rounds}" for one in arm)
    text = (
        f"Validation SSIM went from {number(first)} after the first round to {number(best)} at the "
        f"best (round {rounds})"
    )
    late = [rise for one in arm if (rise := _late_rise(one.val_ssim)) is not None]
    if late:
        rise = number(_mean(late), is_signed=True)
        text += f"; the last quarter of rounds differs from the one before by {rise}"
    hours = _mean([one.train_s / one.n_rounds for one in arm]) * N_PAPER / 3600
    return f"{text}. At this pace the paper's {N_PAPER} rounds take {hours:.1f} hours."


def _late_rise(values: Sequence[float]) -> float | None:
    """Return the mean of the last quarter minus that of the one before; None for too few."""
    n = len(values) // 4
    return None if n < N_QUARTER else _mean(values[-n:]) - _mean(values[-2 * n : -n])


def _cost(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    costs = []
    for name, part in (("it", arm), ("greedy", greedy)):
        if all(one.n_decisions for one in part) and part:
            cost = _Cost.of(part)
            costs.append(
                f"{name} learned from {cost.n_decisions:,.0f} decisions at "
                f"{cost.per_decision:,.0f} reconstructions each, {cost.per_second:,.0f} "
                "reconstructions a second"
            )
    return f"In this time {'; '.join(costs)}." if costs else ""


def _foresight(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    searched = [one for one in arm if one.search_ssim]
    if not searched:
        return ""
    decided, met = (
        number(_mean([_mean(getattr(one, name)[-N_LAST:]) for one in searched]))
        for name in ("search_ssim", "tree_ssim")
    )
    own, *other = (
        number(_mean([max(one.val_ssim) for one in part])) for part in (arm, greedy) if part
    )
    return (
        f"Searches, which see the truth, end at {decided} on training slices, and the best masks "
        f"that they met at {met}; on held-out slices the network alone ends at {own}"
        f"{''.join(f', greedy at {one}' for one in other)}."
    )


def _labels(arm: Sequence[ArmRecord]) -> str:
    known = [one for one in arm if one.label_entropy and one.loss]
    if not known:
        return ""
    first, last, loss = (
        _mean([values[place] for values in (getattr(one, name) for one in known)])
        for name, place in (("label_entropy", 0), ("label_entropy", -1), ("loss", -1))
    )
    return (
        f"What searches chose has an entropy of {first:.2f} nats in the first round and {last:.2f} "
        f"in the last, as of {exp(last):.0f} columns that share the searches equally, where the "
        f"network's loss is {loss:.2f}."
    )


def _adapts(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    parts = []
    for name, part in (("Its", arm), ("greedy's", greedy)):
        known = [one for one in part if one.mutual_information is not None]
        if known:
            own, shared = (
                _mean([getattr(one, x) for one in known])
                for x in ("conditional_entropy", "mutual_information")
            )
            parts.append(
                f"{name} distribution has {own:.2f} nats of entropy given the slice, as of "
                f"{exp(own):.0f} equal columns, and {shared:.2f} of mutual information with it"
            )
    return f"{'; '.join(parts)}." if parts and parts[0].startswith("Its") else ""


def _decided(arm: Sequence[ArmRecord], greedy: Sequence[ArmRecord]) -> str:
    if not greedy:
        return ""
    own, other = (number(_by_argmax(part), is_signed=True) for part in (arm, greedy))
    found = paired(by_best(arm), by_best(greedy))
    by = "" if found is None else f" by {told(found, arm)}"
    return (
        f"With the best column instead of draws it changes by {own}, greedy by {other}; it then "
        f"ends {standing(found)} greedy{by}."
    )


def _by_argmax(arm: Sequence[ArmRecord]) -> float:
    return _mean([mean_ssim(one.argmax_volumes) - mean_ssim(one.volumes) for one in arm])


def _constant(arm: Sequence[ArmRecord], main: Sequence[ArmRecord]) -> str:
    found = paired(arm, main)
    first = arm[0]
    by = "" if found is None else f" by {difference(found)}"
    text = (
        f"`{first.arm}` ({first.preset}, {first.minutes:g} minutes) ends {standing(found)} "
        f"`{CENTER}` of equal time{by}. After {_millions(first.n_made)} reconstructions "
        f"its validation SSIM is {number(max(first.val_ssim))}"
    )
    own = [one for one in main if one.seed == first.seed]
    reached = reached_after(own[0], first.n_made) if own else None
    return f"{text}." if reached is None else f"{text}, where `{CENTER}` had {number(reached)}."


def reached_after(record: ArmRecord, n_reconstructions: int) -> float | None:
    """Return the best validation SSIM of an arm after so many reconstructions.

    None where that is less than its first round, or more than it did in all.
    """
    n_rounds = int(n_reconstructions * record.n_rounds / record.n_made + 1e-9)
    if not 1 <= n_rounds or n_reconstructions > record.n_made:
        return None
    return max(record.val_ssim[:n_rounds])


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} million"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
