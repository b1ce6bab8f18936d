r"""Compute published scores again, with the files that ship, on a sample of the test slices.

For every record of benchmarks/leaderboard.json, and for the reconstructions of the zoo, it says
what the sample gives, what is published, and how far apart they may lie:

    python benchmarks/recompute.py                        # 24 slices, minutes on two cores
    python benchmarks/recompute.py --n-slices 95 --oracles
    python benchmarks/recompute.py --data heads=stores/heads
    python benchmarks/recompute.py --n-slices 4 --trajectories 1 --shipped --device cpu \
        --record benchmarks/recomputed.json               # what a test compares with, too

A method is compared by its paired difference to the fixed order, the fixed order by its SSIM, a
reconstruction by the SSIM of the central columns alone. Test knees are made anew, one slice of
each; real heads are given. The tolerance is half of the sample's 99 % interval for a mean of the
whole test set, with volumes as the unit, plus what arithmetic may change: published scores came
through 16-bit kernels, and those of trained policies before their files were rounded to 16 bit.
"""

import argparse
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from leaderboard import LeaderboardRow, frozen_rows
from scipy import stats

from kscout.data.generate import MakeSettings, make_store
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.files import write_json
from kscout.names import POLICIES
from kscout.zoo import ZOO, zoo_card, zoo_names

KNEES, N_VOLUMES, N_SLICES_OF_VOLUME = "knee-paper-size", 95, 18
"""The test set of `kscout data make knee --paper`, but for its last volume, which is cut short."""
HORIZONS = {"knee-base": (16, 16), "knee-long": (4, 28), "heads-base": (16, 16)}
"""Start and steps."""
ARITHMETIC = 3e-4
"""What 16-bit kernels and files may move a mean by; docs/protocols.md and the cards have less."""
_TRYING = tuple(name for name in zoo_names("policy") if name.endswith(("-imagine", "-weighed")))
"""Policies of the zoo that try hundreds of columns before they take one."""
SHIPPED = (*(name for name in zoo_names("policy") if name not in _TRYING), "fixed")
_ORACLES = ("oracle", "spectral-oracle")
_SLOW = (*_ORACLES, *_TRYING)


@final
@dataclass(frozen=True)
class Finding:
    """One published number and what the sample says of it."""

    where: str
    what: str
    published: float
    found: float | None = None
    tolerance: float = math.nan
    reason: str = ""
    """Why it was not computed."""

    @property
    def differs(self) -> bool:
        return self.found is not None and not abs(self.found - self.published) <= self.tolerance

    def __str__(self) -> str:
        head = f"{self.where:12}{self.what:28}{self.published:+.4f}"
        if self.found is None:
            return f"{head}  not computed: {self.reason}"
        verdict = "DIFFERS" if self.differs else "agrees"
        return f"{head}  {self.found:+.4f}, tolerance {self.tolerance:.4f}: {verdict}"


def tolerance_of(values: Float[np.ndarray, " slice"], volumes: Sequence[str]) -> float:
    """Return how far a sample's mean may lie from that of the whole test set."""
    names = np.array(volumes)
    means = [values[names == name].mean() for name in dict.fromkeys(volumes)]
    if len(means) < 2:
        raise ConfigError("a sample of one volume says nothing; take --n-slices 2 or more")
    error = np.std(means, ddof=1) / math.sqrt(len(means))
    return float(stats.t.ppf(0.995, len(means) - 1) * error) + ARITHMETIC


def sampled_knees(n_slices: int, work: Path) -> SliceSet:
    """Make the first knees of the test set, and take as many slices, at all depths in turn."""
    n_volumes = min(n_slices, N_VOLUMES)
    making = MakeSettings(
        kind="knee",
        volumes=(0, 0, n_volumes),
        slices=N_SLICES_OF_VOLUME,
        size=128,
        workers=1 if n_volumes < 8 else 0,
    )
    slices = make_store(work / f"knees-{n_volumes}", making).split("test")
    places = [
        number * n_volumes // n_slices * N_SLICES_OF_VOLUME + (7 * number + 4) % N_SLICES_OF_VOLUME
        for number in range(n_slices)
    ]
    return slices.subset(torch.tensor(sorted(set(places))))


def recomputed(
    rows: Sequence[LeaderboardRow],
    slices: SliceSet,
    *,
    n_trajectories: int = 2,
    left_out: Collection[str] = _SLOW,
    device: str = "auto",
) -> Iterator[Finding]:
    """Yield what a sample says of the records of one store and horizon, its network first.

    Args:
        rows: of one store and horizon.
        slices: some of its test slices.
        n_trajectories: acquisitions per slice of policies that draw.
        left_out: methods that are not run.
        device: `auto`, `cpu` or `cuda`.
    """
    horizon = rows[0].horizon
    start, steps = HORIZONS[horizon]
    wanted, reasons = sorted_out([row.method for row in rows], horizon, left_out)
    network = f"{horizon.partition('-')[0]}-unet"
    plan = AcquisitionPlan(start, steps, n_trajectories)
    setting = EvaluationSetting(plan=plan, device=device)
    done = evaluate(list(wanted.values()), slices, network, setting)
    ssim = {one.policy: one.metric("ssim") for one in done.scores}
    if published := start_score(network, start):
        values = ssim["fixed"][:, 0]
        tolerance = tolerance_of(values, slices.volumes)
        yield Finding(horizon, f"{network}, start", published, float(values.mean()), tolerance)
    for row in rows:
        is_fixed = row.method == "fixed"
        told = row.ssim_mean if is_fixed else row.difference_to_fixed
        what = row.method if is_fixed else f"{row.method} - fixed"
        if row.method in reasons:
            yield Finding(horizon, what, told, reason=reasons[row.method])
            continue
        values = ssim[row.method][:, -1] - (0 if is_fixed else ssim["fixed"][:, -1])
        tolerance = tolerance_of(values, slices.volumes)
        yield Finding(horizon, what, told, float(values.mean()), tolerance)


def sorted_out(
    methods: Sequence[str], horizon: str, left_out: Collection[str] = _SLOW
) -> tuple[dict[str, str], dict[str, str]]:
    """Return policies to run, and why others are not, by method."""
    wanted, reasons = {}, {}
    for method in methods:
        name = f"{horizon}-fixed" if method == "fixed" else method
        origin = POLICIES[name].origin if name in POLICIES.entries else None
        if method in left_out:
            reasons[method] = "left out"
        elif name in ZOO or origin == "name":
            wanted[method] = f"{method}={name}" if name in ZOO else name
        else:
            is_fitted = origin == "fit"
            reasons[method] = "fitted on the whole test set" if is_fitted else "does not ship"
    return wanted, reasons


def start_score(network: str, n_initial: int) -> float | None:
    """Return what the card of a reconstruction says of the central columns alone."""
    if network not in zoo_names("reconstructor"):
        return None
    card = " ".join(zoo_card(network).split())
    found = re.search(rf"With {n_initial} central columns of 128 alone, test SSIM is (\S+)", card)
    return float(found.group(1).rstrip(".")) if found else None


def findings(
    rows: Sequence[LeaderboardRow],
    n_slices: int,
    work: Path,
    *,
    data: Mapping[str, Path],
    n_trajectories: int = 2,
    left_out: Collection[str] = _SLOW,
    device: str = "auto",
) -> Iterator[Finding]:
    """Yield what samples say of all records; see `recomputed`."""
    made: dict[str, SliceSet] = {}
    for place in dict.fromkeys(row.place for row in rows):
        store, horizon, _ = place
        own = [row for row in rows if row.place == place]
        if store in data:
            made[store] = Store.open(data[store]).split("test").sample(n_slices)
        elif store == KNEES and store not in made:
            made[store] = sampled_knees(n_slices, work)
        if store in made:
            yield from recomputed(
                own,
                made[store],
                n_trajectories=n_trajectories,
                left_out=left_out,
                device=device,
            )
            continue
        for row in own:
            reason = f"give --data {store}=STORE"
            yield Finding(horizon, row.method, row.difference_to_fixed, reason=reason)


def main() -> int:
    """Print all findings; the exit code is 1 where one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n-slices", type=int, default=24)
    parser.add_argument("--trajectories", type=int, default=2)
    parser.add_argument("--oracles", action="store_true", help="run oracles, too: slow")
    parser.add_argument("--weighed", action="store_true", help="run weighed policies, too: slow")
    parser.add_argument("--shipped", action="store_true", help="only what the zoo holds")
    parser.add_argument("--record", type=Path, help="file to write what was found to")
    parser.add_argument("--data", action="append", default=[], metavar="STORE=PATH")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, default=Path("runs/recompute"))
    wanted = parser.parse_args()
    data = {name: Path(path) for name, path in (text.split("=", 1) for text in wanted.data)}
    found = []
    for finding in findings(
        [row for row in frozen_rows() if not wanted.shipped or row.method in SHIPPED],
        wanted.n_slices,
        wanted.work,
        data=data,
        n_trajectories=wanted.trajectories,
        left_out=(
            *(() if wanted.oracles else _ORACLES),
            *(() if wanted.weighed else _TRYING),
        ),
        device=wanted.device,
    ):
        print(finding, flush=True)
        found.append(finding)
    if wanted.record is not None:
        told = [{"where": x.where, "what": x.what, "found": x.found} for x in found if x.found]
        sample = {"n_slices": wanted.n_slices, "n_trajectories": wanted.trajectories}
        write_json(wanted.record, {**sample, "findings": told})
    n_differing = sum(one.differs for one in found)
    n_computed = sum(one.found is not None for one in found)
    print(f"{n_computed} of {len(found)} published numbers computed again, {n_differing} differ")
    return 1 if n_differing else 0


if __name__ == "__main__":
    sys.exit(main())
