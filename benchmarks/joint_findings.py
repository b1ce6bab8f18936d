"""What the records of joint trainings say, in sentences and tables of docs/joint.md and README.md.

Every sentence follows from the records; where they do not decide, it says so.
"""

import itertools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from joint_records import (
    HORIZONS,
    RECORDS,
    REFERENCE,
    JointRecord,
    groups_of,
    read_records,
)
from leaderboard import frozen_rows
from paired import Paired, paired
from tables import difference, markdown, number

from kscout.evaluation.analyses.ceiling import Ceiling, CeilingRow
from kscout.evaluation.summaries.summarize import gap_closed
from kscout.report.commands import as_shell

ADAPTIVE = "dense"
GOAL = 0.002
"""SSIM by which adapting was hoped to pay."""
_DEFAULTS = {("--n-initial", "16"), ("--steps", "16"), ("--protocol", "paper")}
_POSTERIORS = ("posterior", "posterior-residual")


def verdict(found: Paired) -> str:
    """Say whether adapting pays, by the interval of the difference and by its size."""
    if found.interval is None:
        return "one volume decides nothing"
    low, high = found.interval
    if low > 0:
        return (
            "adapting pays" if found.difference >= GOAL else f"adapting pays, by less than {GOAL:g}"
        )
    return "adapting costs" if high < 0 else "no difference is shown"


def findings(folder: Path = RECORDS) -> str:
    """Return a line for each comparison of the adaptive arm with the refitted fixed order."""
    lines = []
    for group in groups_of(read_records(folder)):
        found = paired(group.get(ADAPTIVE, []), group.get(REFERENCE, []))
        if found is not None:
            lines.append(_finding(group, found))
    if not lines:
        return f"No pair of `{ADAPTIVE}` and `{REFERENCE}` has been run yet.\n"
    return "".join(f"- {line}\n" for line in lines)


def _finding(group: dict[str, list[JointRecord]], found: Paired) -> str:
    first = group[ADAPTIVE][0]
    horizon = HORIZONS[first.horizon]
    place = f"{first.horizon}, {horizon.n_initial} + {horizon.steps} columns, {first.conditions}"
    words = (
        f"{difference(found)} over {_seeds(len(found.seeds))} ({_by_seed(group, found)}): "
        f"{verdict(found)}."
    )
    told = f"`{ADAPTIVE}` minus `{REFERENCE}` {words}{_parted(group)}{_beside_frozen(group)}"
    return f"**{place}.** {told}"


def _by_seed(group: dict[str, list[JointRecord]], found: Paired) -> str:
    """Return the difference of each seed, which the interval over volumes does not tell of."""
    own, other = ({x.seed: x.ssim for x in group[arm]} for arm in (ADAPTIVE, REFERENCE))
    return ", ".join(number(own[x] - other[x], is_signed=True) for x in found.seeds)


def _parted(group: dict[str, list[JointRecord]]) -> str:
    """Part the difference: what choosing anew is worth on one network, and what the network is."""
    own, other = (
        [one.bounds for one in group[arm] if one.bounds is not None]
        for arm in (ADAPTIVE, REFERENCE)
    )
    if not own or not other:
        return ""
    here, order, there = (
        _mean([getattr(one, name) for one in part])
        for part, name in ((own, "arm"), (own, "fixed"), (other, "arm"))
    )
    whole, chosen, rest = (
        number(x, is_signed=True) for x in (here - there, here - order, order - there)
    )
    return (
        f" Of {whole} on {own[0].n_slices} slices, {chosen} is what choosing anew is worth on the "
        f"network of `{ADAPTIVE}`, over an order fitted for that network, and {rest} is what that "
        "network leads by with a fixed order."
    )


def _beside_frozen(group: dict[str, list[JointRecord]]) -> str:
    """Compare the refitted fixed order with what the frozen network can reach at all."""
    first = group[REFERENCE][0]
    place = (HORIZONS[first.horizon].store, first.horizon)
    frozen = {x.method: x.ssim_mean for x in frozen_rows() if (x.store, x.horizon) == place}
    if not {REFERENCE, "oracle"} <= frozen.keys():
        return ""
    own = _mean([one.ssim for one in group[REFERENCE]])
    beyond = "above" if own > frozen["oracle"] else "below"
    return (
        f" A fixed order with its own network reaches {number(own)}, {beyond} the frozen network's "
        f"oracle, which sees the truth ({number(frozen['oracle'])}; a fixed order there "
        f"{number(frozen[REFERENCE])})."
    )


def headroom(folder: Path = RECORDS) -> str:
    """Return what oracles and estimates of the ceiling reach on the network of each arm."""
    head = (
        *("horizon", "arm", "seeds", "arm's SSIM", "a fixed order there", "NA oracle", "oracle"),
        *("gap closed", "ceiling's estimate", "oracle minus NA oracle", "slices"),
        "network, training",
    )
    arms = [arm for group in groups_of(read_records(folder)) for arm in group.values()]
    return markdown(head, [line for arm in arms if (line := _headroom(arm, folder))])


def _headroom(arm: Sequence[JointRecord], folder: Path) -> tuple[str, ...] | None:
    measured = [one for one in arm if one.bounds is not None]
    if not measured:
        return None
    first, bounds = measured[0], [one.bounds for one in measured if one.bounds is not None]
    names = ("arm", "fixed", "na_oracle", "oracle")
    own, fixed, low, high = (_mean([getattr(x, name) for x in bounds]) for name in names)
    closed = gap_closed(own, low, high)
    return (
        *(first.horizon, f"`{first.arm}`", ", ".join(str(one.seed) for one in measured)),
        *map(number, (own, fixed, low, high)),
        "-" if closed is None else f"{100 * closed:.0f} %",
        ceiling(folder / "ceiling" / f"{first.horizon}-{first.arm}-{first.seed}"),
        *(number(high - low, is_signed=True), str(bounds[0].n_slices), first.conditions),
    )


def ceiling(folder: Path) -> str:
    """Return the share of the gap that `kscout analyze ceiling` estimated, where it was run."""
    file = folder / "ceiling.json"
    if not file.is_file():
        return "-"
    rows: list[CeilingRow] = Ceiling.parse(json.loads(file.read_text(encoding="utf-8")))
    last = [row for row in Ceiling.told(rows) if row.policy in _POSTERIORS]
    shares = [row.gap_closed for row in last if row.gap_closed is not None]
    return f"{100 * max(shares):.0f} %" if shares else "-"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def best(folder: Path = RECORDS, *, horizon: str = "knee-base") -> str:
    """Return what to train for the best image at four times the speed."""
    arms = [arm for group in groups_of(read_records(folder)) for arm in group.values()]
    own = [arm for arm in arms if arm[0].horizon == horizon]
    if not own:
        return (
            "`kscout train joint --data stores/knee --out runs/joint --method fixed "
            "--reconstructor runs/unet` trains the reconstruction\n"
            "together with the order of its columns, or with a policy (`--method dense`); both are "
            "in the folder that it makes ([docs/joint.md](docs/joint.md)).\n"
        )
    arm = max(own, key=lambda seeds: _mean([one.ssim for one in seeds]))
    first, frozen = arm[0], [x for x in frozen_rows() if x.horizon == horizon]
    top = max((x for x in frozen if "oracle" not in x.method), key=lambda x: x.ssim_mean)
    return (
        f"For the best image at 4x, train reconstruction and columns together:\n\n"
        f"```bash\n{_command(first)}\n```\n\n"
        f"With {first.n_train:,} slices it reaches SSIM {number(_mean([one.ssim for one in arm]))} "
        f"({_seeds(len(arm))}), where the best policy for a frozen network,\n`{top.method}`, "
        f"reaches {number(top.ssim_mean)}. One folder holds network and policy. Whether adapting "
        "pays then:\n[docs/joint.md](docs/joint.md).\n"
    )


def _command(record: JointRecord) -> str:
    """Return what trains an arm, less its seed and what is the default at 4x."""
    words, kept = shlex.split(record.commands[0]), []
    for word, value in itertools.pairwise(words):
        if word.startswith("--") and (word, value) not in _DEFAULTS and word != "--seed":
            kept += [word, "runs/joint" if word == "--out" else value]
    return as_shell([*words[:3], *kept])


def _seeds(n_seeds: int) -> str:
    return f"{n_seeds} seed{'s' if n_seeds > 1 else ''}"
