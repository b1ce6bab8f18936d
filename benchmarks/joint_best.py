"""What to train for the best image, in a sentence of README.md that follows from the records."""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from joint_findings import mean, told_seeds
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


def best(folder: Path = RECORDS, *, horizon: str = "knee-base") -> str:
    """Return what to train for the best image at four times the speed."""
    groups = groups_of(read_records(folder))
    own = [(arm, x) for x in groups for arm in x.values() if arm[0].horizon == horizon]
    if not own:
        return (
            "`kscout train joint --data stores/knee --out runs/joint --method fixed "
            "--reconstructor runs/unet` trains the reconstruction\n"
            "together with the order of its columns, or with a policy (`--method dense`); both are "
            "in the folder that it makes ([docs/joint.md](docs/joint.md)).\n"
        )
    arm, group = max(own, key=lambda pair: _ssim(pair[0]))
    first, frozen = arm[0], [x for x in frozen_rows() if x.horizon == horizon]
    top = max((x for x in frozen if "oracle" not in x.method), key=lambda x: x.ssim_mean)
    return (
        f"For the highest SSIM at 4x, train reconstruction and columns together, which is work for "
        f"a GPU\n({_time(arm)}):\n\n```bash\n{_command(first)}\n```\n\n"
        f"With {_slices(first)} it reaches\nSSIM {number(_ssim(arm))} ({told_seeds(len(arm))}). "
        f"{_beside(arm, group)}The best policy for a frozen network, "
        f"`{top.method}`,\nreaches {number(top.ssim_mean)}. One folder holds network and policy. "
        f"{_shipped(horizon)}\nWhether adapting pays: "
        "[docs/joint.md](docs/joint.md#does-adapting-pay).\n"
    )


def _ssim(arm: Sequence[JointRecord]) -> float:
    return mean([one.ssim for one in arm])


def _time(arm: Sequence[JointRecord]) -> str:
    """Return how long seeds took on average, and on what."""
    device = arm[0].device.partition(": ")[2].partition(" x ")[0] or arm[0].device
    return (
        f"{mean([one.train_s for one in arm]) / 60:.0f} minutes on one {device} that others shared"
    )


def _beside(arm: Sequence[JointRecord], group: Group) -> str:
    """Say what a fixed order reaches that learned together with its network."""
    reference = leading(group, REFERENCE)
    if not reference or reference is arm:
        return ""
    return (
        f"A fixed order that learned together\nwith its own network reaches "
        f"{number(_ssim(reference))}. "
    )


def _shipped(horizon: str) -> str:
    """Say which pair of the zoo need not be trained."""
    names = [name for name in ZOO if name.startswith(f"joint-{horizon}-")]
    return (
        f"To train nothing, take a pair of the zoo:\n`{'` with `'.join(names)}`." if names else ""
    )


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
