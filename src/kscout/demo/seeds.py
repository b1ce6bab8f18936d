"""How often the demo's claim held: what `benchmarks/demo_seeds.py` found over several seeds."""

import json
from pathlib import Path
from typing import Any

from kscout.demo.words import say

SEEDS = Path(__file__).with_name("seeds.json")
"""Written by that script: per seed the lead over the fixed order and its interval."""


def tell_seeds(path: Path = SEEDS) -> str:
    """Say in how many of the recorded runs the interval lay above zero."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["seeds"]
    if not rows:
        return say("seeds_none")
    leads = [f"{row['lead']:+.4f}".replace("-", "−") for row in rows]
    n_hold = sum(is_above(row) for row in rows)
    return say("seeds", n_hold=n_hold, n_seeds=len(rows), leads=", ".join(leads))


def is_above(row: dict[str, Any]) -> bool:
    """Say whether the lead of one run has an interval above zero."""
    return row["interval"] is not None and row["interval"][0] > 0
