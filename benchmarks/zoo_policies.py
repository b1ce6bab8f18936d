"""Which policy of the zoo to take, by images, start and machine: a table of concepts/policies.md.

From the leaderboard, and for heads from 4 columns, which it has not, from the record of the entry.
"""

import json
from pathlib import Path

from dense_records import DenseRecord, minus
from leaderboard import LeaderboardRow, frozen_rows
from tables import filled, markdown, ref_of

from kscout.config import read

RECORDS = Path(__file__).with_name("zoo_results")
_PLACES = {
    ("knees", "GPU"): ("knee-base/knee-base-weighed", "knee-long/knee-long-weighed"),
    ("knees", "CPU"): ("knee-base/knee-base-column", "knee-long/knee-long-greedy"),
    ("heads", "GPU"): ("heads-small-base/heads-base-weighed", "heads-long-weighed"),
    ("heads", "CPU"): ("heads-small-base/heads-base-column", ""),
}
_NONE = "`heads-long-fixed`, the fixed order"
"""Where no policy for a CPU was trained."""


def table() -> str:
    """Return a line for each kind of image and machine."""
    head = ("images", "to decide with", "16 + 16 columns", "4 + 28 columns")
    rows = {ref_of(row): row for row in frozen_rows()}
    lines = [(*where, *(_told(ref, rows) for ref in refs)) for where, refs in _PLACES.items()]
    long = _record("heads-long-weighed")
    return (
        f"{markdown(head, lines)}\nKnees: 1,715 slices of 96 procedural volumes. Heads: slices of "
        "Colin27, which no policy and no\nnetwork has learned from, 640 from 16 columns and "
        f"{long.n_slices} from 4; intervals are over volumes made of this one head.\n"
    )


def _told(ref: str, rows: dict[str, LeaderboardRow]) -> str:
    if not ref:
        return _NONE
    if "/" not in ref:
        return f"`{ref}` {minus([_record(ref)])}"
    return filled(f"`{ref.partition('/')[2]}` {{minus {ref}}}", rows)


def _record(name: str) -> DenseRecord:
    return read(DenseRecord, json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")))
