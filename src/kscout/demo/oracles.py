"""Scores that are stored with the demo, because computing them takes longer than all the rest.

`benchmarks/demo_oracles.py` writes them: oracles on the very slices that the demo looks at, which
try every column at every step, and what policies score on the whole test set.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from kscout.evaluation.records.results import Scores

STORED = Path(__file__).with_name("oracles.json")
LARGEST_DIFFERENCE = 1e-4
"""In SSIM at the start, up to which a slice counts as the same one.

Machines round differently: the same recipe may give other last bits, and another fingerprint.
"""


@final
@dataclass(frozen=True)
class StoredOracles:
    """Oracles of one acquisition, and how they came about."""

    command: str
    date: str
    fingerprint: str
    """Of the store that holds the slices."""
    slices: tuple[tuple[str, int], ...]
    """Volume and number of each slice."""
    ssim: dict[str, Float64[np.ndarray, "slice moment"]]
    """By oracle."""
    columns: tuple[tuple[int, ...], ...]
    """Of each slice, what the oracle acquired, in order."""
    whole_test: dict[str, dict[str, Any]]
    """By method, its record over the whole test set."""
    test_set: dict[str, Any]
    """That set's store, `n_slices` and `n_volumes`."""

    def check(self, fingerprint: str, found: Scores) -> tuple[bool, str]:
        """Say whether these are oracles of the slices that were scored here, and why.

        Args:
            fingerprint: of the store that was made here.
            found: any policy's scores; all policies start from the same columns.
        """
        if tuple(zip(found.volumes, found.slices, strict=True)) != self.slices:
            return False, "they are of other slices than those of this run"
        start, here, there = found.metric("ssim")[:, 0], fingerprint[:12], self.fingerprint[:12]
        largest = max(float(np.abs(ssim[:, 0] - start).max()) for ssim in self.ssim.values())
        if largest > LARGEST_DIFFERENCE:
            return False, (
                f"SSIM at the start differs by up to {largest:.0e} from theirs, so that images or "
                f"U-Net are others (store fingerprint {here} here, {there} there)"
            )
        if fingerprint == self.fingerprint:
            return True, f"their store has the fingerprint of this one, {here}"
        return True, (
            f"the fingerprint of this store, {here}, is not that of theirs, {there}, as machines "
            "round differently, but the SSIM of every slice at the start is the same within "
            f"{LARGEST_DIFFERENCE:g}"
        )


def read_stored(name: str, path: Path = STORED) -> StoredOracles | None:
    """Return what is stored of an acquisition, None where nothing is.

    Args:
        name: the acquisition's name, e.g. knee-base.
        path: the file.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    if name not in value["acquisitions"]:
        return None
    entry = value["acquisitions"][name]
    return StoredOracles(
        command=value["command"],
        date=entry["date"],
        fingerprint=entry["store_fingerprint"],
        slices=tuple((volume, number) for volume, number in entry["slices"]),
        ssim={name: np.array(rows, dtype=np.float64) for name, rows in entry["ssim"].items()},
        columns=tuple(tuple(order) for order in entry["columns"]),
        whole_test=entry["whole_test"],
        test_set=value["test_set"],
    )
