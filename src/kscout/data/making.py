"""Settings of generated stores: kind of images, numbers of volumes, and variants."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

from kscout.config.bounds import Form
from kscout.config.records import check
from kscout.errors import ConfigError, unknown_name
from kscout.names import SOURCES, Target

if TYPE_CHECKING:
    from kscout.data.makers.coils import Receiver

_MOST_VOLUMES = 1_000_000
_ALWAYS_WORKERS = 64
"""Largest number of processes, independent of the number of cores."""


def parse_counts(text: str, option: str) -> tuple[int, int, int]:
    """Parse volumes per split from `train,val,test`."""
    try:
        train, val, test = (int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option} {text[:50]!r} is not three numbers; write train,val,test as in 40,10,10"
        ) from error
    return train, val, test


@final
@dataclass(frozen=True, kw_only=True)
class MakeSettings:
    """Settings of a generated store."""

    kind: str
    """A name in `kscout.names.SOURCES`."""
    volumes: Annotated[tuple[int, int, int], Form("TRAIN,VAL,TEST", parse_counts)] = (40, 10, 10)
    """Number of volumes per split."""
    slices: int = 16
    """Slices per volume."""
    totals: tuple[int, int, int] | None = None
    """Exact slices per split; the last volume of each split is shortened."""
    size: int | None = None
    """Pixels per side, 64 to 512. (default: 128; brain 256)"""
    seed: int = 0
    """Random seed of the images."""
    variant: str = "realistic"
    """realistic, or structured (designed to reward adaptivity)."""
    sources: Annotated[tuple[Path, ...], Form(flags="--source")] = ()
    """heads: NIfTI or .npy volumes, one per subject."""
    download: bool = False
    """heads: download real volumes with pip, and cache them."""
    coils: int | None = None
    """Store complex k-space of this number of coils instead of images."""
    phase: bool = False
    """k-space: simulate a smooth phase of the subject."""
    snr: float | None = None
    """k-space: signal-to-noise ratio. (default: random)"""
    target: Target = "rss"
    """k-space: rule for targets."""
    workers: int = field(default=0, compare=False)
    """Processes; 0 for one per core, fewer for few images. Images do not depend on it."""

    def __post_init__(self) -> None:
        check(self)
        # SciPy, which these load, is not needed for the help of `kscout data make`.
        from kscout.data.makers.scanner import check_request

        if self.kind not in SOURCES:
            raise unknown_name("kind of images", self.kind, list(SOURCES))
        counts = ",".join(map(str, self.volumes))
        if min(self.volumes) < 0:
            raise ConfigError(f"--volumes {counts} has a number below 0; give 0 or more per split")
        if not 0 < sum(self.volumes) <= _MOST_VOLUMES:
            raise ConfigError(
                f"--volumes {counts} are {sum(self.volumes)} volumes; ask for one or more, up to "
                f"{_MOST_VOLUMES}"
            )
        check_request(self.slices, self.size or SOURCES[self.kind].size)
        most = max(_ALWAYS_WORKERS, 4 * (os.cpu_count() or 1))
        for name, value, bound in (("seed", self.seed, 2**63 - 1), ("workers", self.workers, most)):
            if not 0 <= value <= bound:
                raise ConfigError(f"--{name} is {value}; it must be 0 or more, up to {bound}")
        if self.variant not in SOURCES[self.kind].variants:
            raise unknown_name(
                f"variant of {self.kind}", self.variant, list(SOURCES[self.kind].variants)
            )
        given = {"phase": self.phase, "snr": self.snr is not None, "target": self.target != "rss"}
        if self.coils is None and any(given.values()):
            name = next(name for name, is_given in given.items() if is_given)
            raise ConfigError(
                f"--{name} is of k-space, not of images; add --coils, as in --coils 1"
            )
        self.receiver  # noqa: B018 - it checks itself
        has_sources = bool(self.sources or self.download)
        if has_sources and not SOURCES[self.kind].needs_sources:
            raise ConfigError(f"{self.kind} images have no source; give it with `heads` only")
        if SOURCES[self.kind].needs_sources and not has_sources:
            raise ConfigError(
                f"{self.kind} are cut from real volumes; name them with --source FILE, once per "
                "subject, or fetch some with --download"
            )

    @property
    def n_bytes(self) -> int:
        """Upper bound of the size of the store, in bytes."""
        n_pixels = sum(self.volumes) * self.slices * (self.size or SOURCES[self.kind].size) ** 2
        return n_pixels * (4 if self.coils is None else 8 * self.coils)

    @property
    def receiver(self) -> "Receiver | None":
        """The simulated receive coils, if k-space is stored."""
        if self.coils is None:
            return None
        from kscout.data.makers.coils import Receiver

        return Receiver(self.coils, has_phase=self.phase, snr=self.snr)


def paper_settings(kind: str, **options: Any) -> MakeSettings:  # noqa: ANN401 - any setting
    """Return the settings with exactly the paper's numbers of slices."""
    totals = SOURCES[kind].paper_slices if kind in SOURCES else None
    if totals is None:
        known = [name for name, entry in SOURCES.items() if entry.paper_slices is not None]
        raise unknown_name("image set of the paper", kind, known)
    if taken := [name for name in ("volumes", "slices") if name in options]:
        raise ConfigError(f"--paper decides --{taken[0]}; drop one of the two")
    per_volume = SOURCES[kind].paper_slices_per_volume
    train, val, test = (math.ceil(total / per_volume) for total in totals)
    return MakeSettings(
        kind=kind, volumes=(train, val, test), slices=per_volume, totals=totals, **options
    )
