"""Making stores of images that need no license: procedural knees and brains, and cut real heads."""

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from platformdirs import user_cache_path

from kscout.data.formats import amount
from kscout.data.kinds import IMAGES, TARGETS
from kscout.data.makers.coils import Receiver
from kscout.data.makers.heads import Head, HeadSplit, download_heads, load_heads, split_heads
from kscout.data.makers.parallel import make_volumes
from kscout.data.makers.scanner import check_request
from kscout.data.manifest import SPLITS
from kscout.data.store import Store, unfinished_path
from kscout.data.store_writer import OnVolume, StoreWriter, finished_store
from kscout.errors import ConfigError, unknown_name
from kscout.names import SOURCES, PhaseEncoding, check_target

_MOST_VOLUMES = 1_000_000
_ALWAYS_WORKERS = 64
"""Processes that may be asked for, however few cores there are."""
_PIXELS_PER_WORKER = 2**19
"""Half of these are drawn while a worker starts."""


@final
@dataclass(frozen=True, kw_only=True)
class MakeSettings:
    """What to make."""

    kind: str
    """A name in `kscout.names.SOURCES`."""
    volumes: tuple[int, int, int] = (40, 10, 10)
    """Volumes for training, validation and test."""
    slices: int = 16
    """Slices per volume."""
    totals: tuple[int, int, int] | None = None
    """Exact slices per split, where the last volume of each is to be cut short."""
    size: int | None = None
    """Side in pixels, 64 to 512; None for the paper's."""
    seed: int = 0
    variant: str = "realistic"
    sources: tuple[Path, ...] = ()
    """Real volumes for `heads`, one per subject; `split_heads` says who gets which."""
    download: bool = False
    """Fetch real volumes for `heads`."""
    coils: int | None = None
    """Coils whose complex k-space is stored; None stores images."""
    phase: bool = False
    """Give the subject a smooth phase, where there are coils."""
    snr: float | None = None
    """Of that k-space; None draws it per volume, as images have it."""
    maps: str = "loops"
    """What these coils are, a name in `kscout.names.COIL_MAPS`."""
    target: str = "rss"
    """The rule of its targets, a name in `kscout.names.TARGETS`."""
    phase_encoding: PhaseEncoding = "columns"
    """Which way of the images is encoded by phase; rows become the columns of the store."""
    workers: int = field(default=0, compare=False)
    """Processes, 0 for one per core, fewer for few images; the images do not depend on it."""

    def __post_init__(self) -> None:
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
        check_target(self.target)
        given = {"phase": self.phase, "snr": self.snr is not None, "target": self.target != "rss"}
        given["maps"] = self.maps != "loops"
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
        """How large the store will be, at most."""
        size = self.size or SOURCES[self.kind].size
        return (
            (4 if self.coils is None else 8 * self.coils)
            * sum(self.volumes)
            * self.slices
            * size**2
        )

    @property
    def receiver(self) -> Receiver | None:
        """What hears the subjects, where k-space is stored."""
        if self.coils is None:
            return None
        return Receiver(self.coils, has_phase=self.phase, maps=self.maps, snr=self.snr)

    @classmethod
    def parse_counts(cls, text: str) -> tuple[int, int, int]:
        """Read volumes per split from `train,val,test`."""
        try:
            train, val, test = (int(part) for part in text.split(","))
        except ValueError as error:
            raise ConfigError(
                f"--volumes {text[:50]!r} is not three numbers; write train,val,test as in 40,10,10"
            ) from error
        return train, val, test


def paper_settings(kind: str, **options: Any) -> MakeSettings:  # noqa: ANN401 - any setting
    """Return the settings that give exactly the paper's numbers of slices."""
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


def make_store(out: Path | str, settings: MakeSettings, on_volume: OnVolume | None = None) -> Store:
    """Make a store; called again with the same settings, it goes on or returns the finished one."""
    out = Path(out)
    recipe = _recipe(settings)
    if done := finished_store(out, recipe):
        return done
    _check_room(out, settings)
    kind = IMAGES if settings.coils is None else TARGETS[settings.target]
    with StoreWriter(out, recipe, kind=kind) as writer:
        heads = _load_split_heads(settings) if SOURCES[settings.kind].needs_sources else None
        for split in SPLITS:
            _make_split(split, settings, heads.pool(split) if heads else None, writer, on_volume)
        return writer.finish([heads.note] if heads and heads.note else [])


def _make_split(
    split: str,
    settings: MakeSettings,
    heads: Sequence[Head] | None,
    writer: StoreWriter,
    on_volume: OnVolume | None,
) -> None:
    """Draw a split from a seed of its own, so that its images do not depend on other splits."""
    number = SPLITS.index(split)
    if not settings.volumes[number]:
        return
    size = settings.size or SOURCES[settings.kind].size
    n_pixels = settings.volumes[number] * settings.slices * size**2
    most = min(os.cpu_count() or 1, max(1, n_pixels // _PIXELS_PER_WORKER))
    drawn = make_volumes(
        settings.kind,
        n_volumes=settings.volumes[number],
        n_slices=settings.slices,
        size=size,
        seed=len(SPLITS) * settings.seed + number,
        workers=settings.workers or most,
        variant=settings.variant,
        heads=heads,
        receiver=settings.receiver,
        skip={name.removeprefix(f"{split}-") for name in writer.volumes(split)},
    )
    for name, volume in drawn:
        stored = volume.stored
        if settings.phase_encoding == "rows":
            stored = stored.swapaxes(-2, -1)
        if settings.totals:
            stored = stored[: settings.totals[number] - writer.n_slices(split)]
        name = f"{split}-{name}"
        writer.append(split, name, stored, source=volume.source, acquisition=volume.acquisition)
        if on_volume:
            n_done = sum(len(writer.volumes(each)) for each in SPLITS)
            on_volume(n_done, sum(settings.volumes), name)


def _check_room(out: Path, settings: MakeSettings) -> None:
    """Refuse a store that will not fit on its disk, before anything is drawn."""
    unfinished = unfinished_path(out)
    written = sum(file.stat().st_size for file in unfinished.glob("*.npy"))
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    disk = shutil.disk_usage(place)
    if not disk.total:
        raise ConfigError(
            f"{place} is of the system, and holds no files of users; name another --out"
        )
    needed, free = settings.n_bytes - written, disk.free
    if needed > free:
        raise ConfigError(
            f"--volumes {','.join(map(str, settings.volumes))} of {settings.slices} slices take "
            f"{amount(needed)}, and {amount(free)} are free in {place}; lower --volumes, --slices"
            f"{' or --size' if settings.coils is None else ', --size or --coils'}"
        )


def _load_split_heads(settings: MakeSettings) -> HeadSplit:
    paths = list(settings.sources)
    if settings.download:
        paths += download_heads(user_cache_path("kscout") / "heads")
    wanted = [split for split, count in zip(SPLITS, settings.volumes, strict=True) if count]
    return split_heads(load_heads(paths), wanted)


def _recipe(settings: MakeSettings) -> dict[str, Any]:
    values = asdict(settings)
    del values["workers"]
    if settings.phase_encoding == "columns":
        del values["phase_encoding"]
    if settings.maps == "loops":
        del values["maps"]
    if settings.coils is None:
        for name in ("coils", "phase", "snr", "target"):
            del values[name]  # As in stores of 0.1, which go on.
    values["sources"] = [path.as_posix() for path in settings.sources]
    values["size"] = settings.size or SOURCES[settings.kind].size
    return {"command": "kscout data make", "settings": values}
