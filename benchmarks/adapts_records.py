"""What `adapts.py` found, as tables of docs/dense.md and as its picture.

python benchmarks/adapts_records.py docs/images/adapts.png
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from matplotlib.figure import Figure
from tables import markdown, number

from kscout.config import read
from kscout.figures.series import INK, SERIES
from kscout.figures.style import house_style, new_axes

RECORD = Path(__file__).with_name("adapts.json")
WEIGHED = Path(__file__).with_name("adapts_weighed.json")
_SOME = 5
"""Volumes below which an interval over volumes says little."""
_SELDOM = 0.02
"""Columns of a frequency per slice below which the picture leaves it out."""


@final
@dataclass(frozen=True)
class PolicyRecord:
    """How much a policy adapts."""

    policy: str
    n_slices: int
    n_volumes: int
    ssim: float
    difference: float
    """To the fixed order on the same slices, with its interval over volumes."""
    interval: tuple[float, float] | None
    as_fixed: float
    """Columns that a slice shares with the fixed order, opposite ones taken for the same."""
    of_volume: float | None
    """Columns that two slices of one volume share."""
    of_kind: float | None
    """The same of two volumes of one kind."""
    of_others: float | None
    """The same of two kinds."""
    mirrored: float
    """Share of acquired columns whose opposite was measured before."""
    mutual_information: tuple[float, ...]
    """Of frequency and slice, by step, in nats."""
    same: tuple[float, ...]
    """By step, how often slices of two volumes take the same frequency."""
    sampled: tuple[float, ...]
    """By frequency, how many columns of it were acquired, mean over slices."""


@final
@dataclass(frozen=True)
class KindRecord:
    """By how much a policy beats the fixed order on volumes of one kind."""

    policy: str
    kind: str
    n_slices: int
    n_volumes: int
    difference: float
    interval: tuple[float, float] | None


@final
@dataclass(frozen=True)
class OverlookedRecord:
    """`kscout analyze overlooked`, all columns together."""

    policy: str
    n_states: int
    overlooked: float
    gain: float | None
    forgone: float | None


@final
@dataclass(frozen=True)
class Record:
    """All of it."""

    data: str
    n_initial: int
    steps: int
    fixed: str
    """Name of the fixed order."""
    device: str
    policies: tuple[PolicyRecord, ...]
    kinds: tuple[KindRecord, ...]
    overlooked: tuple[OverlookedRecord, ...]


def read_record(path: Path = RECORD) -> Record:
    """Return the record."""
    return read(Record, json.loads(path.read_text(encoding="utf-8")))


def table(path: Path = RECORD) -> str:
    """Return how many columns slices share under each policy, and at which steps they differ."""
    record = read_record(path)
    lines = [
        (
            *(f"`{one.policy}`", str(one.n_slices), number(one.ssim), _minus(one)),
            *(_count(x) for x in (one.as_fixed, one.of_volume, one.of_kind, one.of_others)),
            f"{100 * one.mirrored:.0f} %",
        )
        for one in record.policies
    ]
    head = (
        *("policy", "slices", "SSIM", "minus fixed", "shared with the fixed order"),
        *("by slices of one volume", "of one kind", "of two kinds", "opposite measured before"),
    )
    steps = sorted({1, record.steps, *(record.steps * n // 4 for n in (1, 2, 3))} - {0})
    by_step = [
        (
            f"`{one.policy}`",
            *(f"{100 * one.same[n - 1]:.0f} %, {one.mutual_information[n - 1]:.1f}" for n in steps),
        )
        for one in record.policies
        if one.policy != record.fixed
    ]
    return (
        f"Store `{record.data}`, {record.device}:\n\n{markdown(head, lines)}\n"
        "How often slices of two volumes take the same frequency at a step, and the mutual "
        "information of frequency and slice in nats, which is at most the logarithm of the number "
        "of slices:\n\n"
        f"{markdown(('policy', *(f'step {n}' for n in steps)), by_step)}\n{_apart(record)}"
    )


def _apart(record: Record) -> str:
    """Say what the columns of a learned policy depend on."""
    one = record.policies[0]
    if one.of_volume is None or one.of_kind is None or one.of_others is None:
        return ""
    apart = [record.steps - x for x in (one.of_volume, one.of_kind, one.of_others)]
    more = apart[2] - apart[0]
    what = "to the slice more than to view and contrast" if more < apart[0] else "to the kind most"
    return (
        f"Of {record.steps} columns of `{one.policy}` {apart[0]:.1f} differ between two slices of "
        f"a volume, {apart[1]:.1f} between volumes of a kind and {apart[2]:.1f} between kinds: it "
        f"adapts {what}. Slices of two volumes begin alike in {100 * one.same[0]:.0f} % of pairs, "
        f"and take the same last frequency in {100 * one.same[-1]:.0f} %.\n"
    )


def weighed(path: Path = WEIGHED) -> str:
    """Return the same of a policy that tries columns, and what it overlooks."""
    return (
        f"{table(path).rstrip()}\n\nHow often the best next column is one that a policy hardly "
        f"ever takes, on the slices of the oracle:\n\n{overlooked(path)}"
    )


def kinds(path: Path = RECORD) -> str:
    """Return by how much learned policies beat the fixed order, kind by kind."""
    record = read_record(path)
    names = list(dict.fromkeys(one.policy for one in record.kinds))
    lines = []
    for kind in dict.fromkeys(one.kind for one in record.kinds):
        own = {one.policy: one for one in record.kinds if one.kind == kind}
        first = own[names[0]]
        lines.append(
            (kind, f"{first.n_slices} of {first.n_volumes}", *(_minus(own[x]) for x in names))
        )
    head = ("kind", "slices of volumes", *(f"`{x}` minus fixed" for x in names))
    own = [x for x in record.kinds if x.policy == names[0] and x.n_volumes >= _SOME]
    clear = [one.kind for one in own if one.interval is not None and one.interval[0] > 0]
    return (
        f"{markdown(head, lines)}\nOf {len(own)} kinds with {_SOME} volumes or more "
        f"`{names[0]}` lies above the fixed order on {len(clear)}, with an interval above zero.\n"
    )


def overlooked(path: Path = RECORD) -> str:
    """Return how often the best column is one that a policy hardly ever takes."""
    lines = [
        (
            *(f"`{one.policy}`", str(one.n_states), f"{100 * one.overlooked:.0f} %"),
            *("-" if x is None else number(x) for x in (one.gain, one.forgone)),
        )
        for one in read_record(path).overlooked
    ]
    return markdown(("policy", "states", "overlooked", "gain", "forgone"), lines)


def _minus(one: PolicyRecord | KindRecord) -> str:
    text = number(one.difference, is_signed=True)
    if one.interval is None or one.n_volumes < _SOME:
        return text
    return f"{text} ({number(one.interval[0])} to {number(one.interval[1])})"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def draw(record: Record) -> Figure:
    """Draw how many columns of each frequency policies acquire, beside the fixed order."""
    by_name = {one.policy: np.array(one.sampled) for one in record.policies}
    fixed = by_name.pop(record.fixed)
    last = max(np.flatnonzero(x > _SELDOM)[-1] for x in (fixed, *by_name.values()))
    shown = slice(record.n_initial // 2, last + 1)
    cycles = np.arange(len(fixed))[shown]
    with house_style():
        figure, grid = new_axes(len(by_name), 1, width=7.2, height=1.5 * len(by_name), share_y=True)
        for axes, (name, mean) in zip(grid, by_name.items(), strict=True):
            axes.bar(cycles, mean[shown], width=0.9, color=SERIES[0])
            axes.step(cycles, fixed[shown], where="mid", color=INK, lw=1)
            axes.set_title(name, loc="left")
            axes.set_ylabel("columns")
            axes.label_outer()
        grid[-1].set_xlabel("distance from DC, in cycles per field of view")
    return figure


if __name__ == "__main__":
    draw(read_record()).savefig(sys.argv[1], dpi=150, facecolor="white")
