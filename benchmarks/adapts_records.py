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
from kscout.figures.style import house_style, new_axes, save_figure

RECORD = Path(__file__).with_name("adapts.json")


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
        f"{markdown(head, lines)}\nHow often slices of two volumes take the same column at a step, "
        "and the mutual information of column and slice in nats:\n\n"
        f"{markdown(('policy', *(f'step {n}' for n in steps)), by_step)}\n{_apart(record)}"
    )


def _apart(record: Record) -> str:
    """Say what the columns of a learned policy depend on."""
    one = record.policies[0]
    if one.of_volume is None or one.of_kind is None or one.of_others is None:
        return ""
    steps = [record.steps - one.of_volume, one.of_volume - one.of_kind, one.of_kind - one.of_others]
    first, last = one.same[0], one.same[-1]
    return (
        f"Of {record.steps} columns of `{one.policy}` {steps[0]:.1f} differ between two slices of "
        f"a volume, {steps[1]:.1f} more between volumes of a kind, and {steps[2]:.1f} more between "
        f"kinds. Slices of two volumes begin alike in {100 * first:.0f} % of pairs, "
        f"and take the same last frequency in {100 * last:.0f} %.\n"
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
    own = [one for one in record.kinds if one.policy == names[0]]
    clear = [one.kind for one in own if one.interval is not None and one.interval[0] > 0]
    most, least = (pick(own, key=lambda one: one.difference) for pick in (max, min))
    return (
        f"{markdown(head, lines)}\n`{names[0]}` lies above the fixed order on {len(clear)} of "
        f"{len(own)} kinds with an interval above zero, and gains most on {most.kind} and least on "
        f"{least.kind}.\n"
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
    if one.interval is None:
        return text
    return f"{text} ({number(one.interval[0])} to {number(one.interval[1])})"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def draw(record: Record) -> Figure:
    """Draw how many columns of each frequency policies acquire, beside the fixed order."""
    by_name = {one.policy: np.array(one.sampled) for one in record.policies}
    fixed = by_name.pop(record.fixed)
    shown = slice(record.n_initial // 2, 1 + max(np.flatnonzero(x)[-1] for x in by_name.values()))
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
    save_figure(draw(read_record()), Path(sys.argv[1]).parent, Path(sys.argv[1]).stem)
