"""What to train for the best image, in a sentence of README.md that follows from the records."""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from joint_findings import ADAPTIVE, mean, told_seeds
from joint_records import (
    HORIZONS,
    RECORDS,
    REFERENCE,
    Group,
    JointRecord,
    groups_of,
    leading,
    read_records,
)
from leaderboard import frozen_rows
from tables import number

from kscout.names import SOURCES
from kscout.report.commands import as_shell
from kscout.zoo import ZOO

_DEFAULTS = {
    *(("--n-initial", "16"), ("--steps", "16"), ("--protocol", "paper"), ("--updates", "6000")),
    *(("--set", f"training.{setting}=true") for setting in ("compile", "flips")),
}
"""What need not be typed: the same is computed."""


def best(folder: Path = RECORDS, *, n_columns: int = 32, store: str = "knee-paper-size") -> str:
    """Return what to train for the best image of so many columns, whatever the start."""
    starts = [
        name
        for name, horizon in HORIZONS.items()
        if horizon.store == store and horizon.n_initial + horizon.steps == n_columns
    ]
    arms = [(arm, group) for group in groups_of(read_records(folder)) for arm in group.values()]
    # The best is the last that is taken.
    arms.sort(key=lambda pair: _ssim(pair[0]))
    found = {arm[0].horizon: (arm, group) for arm, group in arms if arm[0].horizon in starts}
    if not found:
        return (
            "`kscout train joint --data stores/knee --out runs/joint --method fixed "
            "--reconstructor runs/unet` trains the reconstruction\n"
            "together with the order of its columns, or with a policy (`--method dense`); both are "
            "in the folder that it makes ([docs/joint.md](docs/joint.md)).\n"
        )
    horizon, *others = sorted(found, key=lambda name: -_ssim(found[name][0]))
    arm, _ = found[horizon]
    frozen = [x for x in frozen_rows() if x.horizon in starts and "oracle" not in x.method]
    top = max(frozen, key=lambda x: x.ssim_mean)
    others_told = (f"From {_start(x)} central columns, {_named(*found[x])}." for x in others)
    words = [
        f"With {_slices(arm[0])} it reaches {_reached(*found[horizon])}.",
        *others_told,
        f"The best policy for a frozen network, `{top.method}`, reaches {number(top.ssim_mean)} "
        f"from {_start(top.horizon)}. One folder holds network and policy.",
        *_shipped(horizon, arm[0].arm),
        "Whether adapting pays: [docs/joint.md](docs/joint.md#does-adapting-pay).",
    ]
    return (
        f"For the highest SSIM at 4x, train reconstruction and columns together, which is work for "
        f"a GPU\n({_time(arm)}):\n\n```bash\n{_command(arm[0])}\n```\n\n"
        f"{fill(' '.join(words), 100, break_on_hyphens=False)}\n"
    )


def _start(horizon: str) -> int:
    return HORIZONS[horizon].n_initial


def _ssim(arm: Sequence[JointRecord]) -> float:
    return mean([one.ssim for one in arm])


def _time(arm: Sequence[JointRecord]) -> str:
    """Return how long seeds took on average, and on what."""
    device = arm[0].device.partition(": ")[2].partition(" x ")[0] or arm[0].device
    return (
        f"{mean([one.train_s for one in arm]) / 60:.0f} minutes on one {device} that others shared"
    )


def _reached(arm: Sequence[JointRecord], group: Group) -> str:
    """Say what the best arm reaches, and the fixed order or the policy beside it."""
    told = f"SSIM {number(_ssim(arm))} ({told_seeds(len(arm))})"
    rival = leading(group, ADAPTIVE if arm[0].arm == REFERENCE else REFERENCE)
    if not rival:
        return told
    seeds = "" if len(arm) == len(rival) else f" ({told_seeds(len(rival))})"
    kind = "a policy" if rival[0].arm == ADAPTIVE else "a fixed order"
    return f"{told}, {kind} with a network of its own {number(_ssim(rival))}{seeds}"


def _named(arm: Sequence[JointRecord], group: Group) -> str:
    """Say the same of an arm that is not the best, with its name."""
    return f"`--method {arm[0].arm}` reaches {_reached(arm, group).removeprefix('SSIM ')}"


def _shipped(horizon: str, arm: str) -> list[str]:
    """Say which pair of the zoo need not be trained, or its network where an order does as well."""
    names = [name for name in ZOO if name.startswith(f"joint-{horizon}-")]
    if not names:
        return []
    if arm == REFERENCE:
        (network,) = (name for name in names if name.endswith("-unet"))
        return [f"To train nothing, take `{network}` of the zoo with `--policy {REFERENCE}`."]
    return [f"To train nothing, take a pair of the zoo: `{'` with `'.join(names)}`."]


def _slices(record: JointRecord) -> str:
    """Return how many slices were learned from, and what makes them."""
    source = HORIZONS[record.horizon].source
    sizes = SOURCES[source].paper_slices if source in SOURCES else None
    told = f"{record.n_train:,} slices"
    is_paper = sizes is not None and record.n_train == sizes[0]
    return f"the {told} of `kscout data make {source} --paper`" if is_paper else told


def _command(record: JointRecord) -> str:
    """Return what trains an arm, less its seed and what is the default at 4x."""
    words, kept = shlex.split(record.command), []
    for word, value in itertools.pairwise(words):
        if word.startswith("--") and (word, value) not in _DEFAULTS and word != "--seed":
            kept += [word, "runs/joint" if word == "--out" else value]
    return as_shell([*words[:3], *kept])
