"""Final scores by volume, and differences of them that are paired by seed and volume."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from kscout.errors import ConfigError
from kscout.evaluation import Scores
from kscout.evaluation.statistics import bootstrap_interval


@final
@dataclass(frozen=True)
class Volume:
    """Final scores of a volume of the test set."""

    n_slices: int
    ssim: float
    psnr: float


class Scored(Protocol):
    """What was scored with one seed."""

    @property
    def arm(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def volumes(self) -> dict[str, Volume]: ...


@final
@dataclass(frozen=True)
class Paired:
    """One arm against another, over the seeds that both have."""

    seeds: tuple[int, ...]
    difference: float
    interval: tuple[float, float] | None


def volumes_of(scores: Scores) -> dict[str, Volume]:
    """Return the mean final scores of every volume."""
    found, names = {}, np.array(scores.volumes)
    for name in dict.fromkeys(scores.volumes):
        values = scores.values[names == name, -1]
        found[name] = Volume(len(values), float(values[:, 0].mean()), float(values[:, 1].mean()))
    return found


def mean_ssim(volumes: dict[str, Volume]) -> float:
    """Return the mean over slices."""
    weights = [one.n_slices for one in volumes.values()]
    return float(np.average([one.ssim for one in volumes.values()], weights=weights))


def paired(arm: Sequence[Scored], other: Sequence[Scored]) -> Paired | None:
    """Return the mean difference in final SSIM, paired by seed and volume; None without a pair."""
    seeds = sorted({one.seed for one in arm} & {one.seed for one in other})
    if not seeds:
        return None
    pairs = [[next(x for x in part if x.seed == s) for part in (arm, other)] for s in seeds]
    # The first says in which order all are read.
    slices, differences = _slices_of(pairs[0][1]), []
    for one, two in pairs:
        if not _slices_of(one) == _slices_of(two) == slices:
            raise ConfigError(
                f"{one.arm} and {two.arm} were scored on other volumes or slices (seed {one.seed}, "
                f"or {seeds[0]}); score all on the same store"
            )
        differences.append([one.volumes[k].ssim - two.volumes[k].ssim for k in slices])
    # Slices of a volume stand for it as often as there are of them.
    values = np.repeat(np.mean(differences, axis=0), list(slices.values()))
    names = [name for name, n in slices.items() for _ in range(n)]
    return Paired(tuple(seeds), float(values.mean()), bootstrap_interval(values, names))


def _slices_of(one: Scored) -> dict[str, int]:
    return {name: volume.n_slices for name, volume in one.volumes.items()}
