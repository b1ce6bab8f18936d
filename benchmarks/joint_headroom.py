"""What arms of joint trainings had left: on their networks, and in validation; docs/joint.md."""

import json
from collections.abc import Sequence
from pathlib import Path

from joint_findings import mean, of_seeds
from joint_records import RECORDS, JointRecord, by_comparison, groups_of, read_records, shown
from tables import number

from kscout.evaluation.summaries.summarize import gap_closed

_SETTLED = 3
"""Epoch of ten after which an arm that rises no more has settled."""
_ESTIMATES = ("posterior", "look-ahead")
"""How names of what stands for the best greedy policy begin."""


def headroom(folder: Path = RECORDS) -> str:
    """Return what oracles and estimates of the ceiling reach on the network of each arm."""
    head = (
        *("arm", "seeds", "arm's SSIM", "a fixed order there", "NA oracle", "oracle"),
        *("gap closed", "ceiling's estimate", "oracle minus NA oracle", "slices"),
    )
    return by_comparison(
        groups_of(read_records(folder)),
        head,
        lambda group: [x for arm in group.items() if (x := _headroom(*arm, folder))],
    )


def _headroom(name: str, arm: Sequence[JointRecord], folder: Path) -> tuple[str, ...] | None:
    measured = [one for one in arm if one.bounds is not None]
    if not measured:
        return None
    bounds = [one.bounds for one in measured if one.bounds is not None]
    kinds = ("arm", "fixed", "na_oracle", "oracle")
    own, fixed, low, high = (mean([getattr(x, kind) for x in bounds]) for kind in kinds)
    closed = gap_closed(own, low, high)
    return (
        *(shown(name), ", ".join(str(one.seed) for one in measured)),
        *map(number, (own, fixed, low, high)),
        "-" if closed is None else f"{100 * closed:.0f} %",
        _ceilings(folder, measured),
        *(number(high - low, is_signed=True), str(bounds[0].n_slices)),
    )


def _ceilings(folder: Path, arm: Sequence[JointRecord]) -> str:
    """Return the estimates of those seeds of an arm for which there are any."""
    found = {one.seed: ceiling(folder / "ceiling" / one.stem) for one in arm}
    told = [f"{share} (seed {seed})" for seed, share in found.items() if share != "-"]
    return ", ".join(told) or "-"


def ceiling(folder: Path) -> str:
    """Return the share of the gap that `kscout analyze ceiling` estimated, where it was run."""
    file = folder / "ceiling.json"
    if not file.is_file():
        return "-"
    rows = json.loads(file.read_text(encoding="utf-8"))
    last = {
        row["policy"]: row["gap_closed"] for row in rows if row["policy"].startswith(_ESTIMATES)
    }
    shares = [share for share in last.values() if share is not None]
    return f"{100 * max(shares):.0f} %" if shares else "-"


def rises(folder: Path = RECORDS) -> str:
    """Return how much each arm still rose in validation after a third of its epochs."""
    return by_comparison(
        groups_of(read_records(folder)),
        ("arm", "seeds", f"SSIM gained after epoch {_SETTLED}"),
        lambda group: [x for arm in group.items() if (x := _rise(*arm))],
    )


def _rise(name: str, arm: Sequence[JointRecord]) -> tuple[str, ...] | None:
    told = [one for one in arm if len(one.validation) > _SETTLED]
    rise = [one.validation[-1] - one.validation[_SETTLED - 1] for one in told]
    return (shown(name), ", ".join(str(one.seed) for one in told), of_seeds(rise)) if told else None
