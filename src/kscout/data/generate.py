"""Making stores of free images: procedural knees and brains, and slices of real heads."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from platformdirs import user_cache_path

from kscout.data.formats import amount
from kscout.data.integrity import source_checksum
from kscout.data.kinds import IMAGES, TARGETS
from kscout.data.makers.heads import Head, download_heads, load_heads, split_heads
from kscout.data.makers.parallel import VolumeTask, make_volumes
from kscout.data.making import MakeSettings
from kscout.data.manifest import SPLITS
from kscout.data.store import Store, unfinished_path
from kscout.data.store_writer import CONTENTS, OnVolume, StoreWriter, finished_store
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import SOURCES

_PIXELS_PER_WORKER = 2**19
"""Half of this number of volumes is generated while a worker starts."""


def make_store(out: Path | str, settings: MakeSettings, on_volume: OnVolume | None = None) -> Store:
    """Make a store; the same settings again resume it or return the finished store."""
    out = Path(out)
    recipe = _recipe(settings)
    of_0_2 = {key: value for key, value in recipe.items() if key != CONTENTS}
    if done := finished_store(out, recipe, of_0_2=of_0_2, files=settings.sources):
        return done
    _check_room(out, settings)
    kind = IMAGES if settings.coils is None else TARGETS[settings.target]
    with StoreWriter(out, recipe, kind=kind, sources=settings.sources) as writer:
        heads, notes = _load_split_heads(settings)
        for split in SPLITS:
            _make_split(split, settings, heads.get(split, ()), writer, on_volume)
        return writer.finish(notes)


def _make_split(
    split: str,
    settings: MakeSettings,
    heads: Sequence[Head],
    writer: StoreWriter,
    on_volume: OnVolume | None,
) -> None:
    """Generate one split from its own seed, so that its images do not depend on other splits."""
    number = SPLITS.index(split)
    if not settings.volumes[number]:
        return
    size = settings.size or SOURCES[settings.kind].size
    n_pixels = settings.volumes[number] * settings.slices * size**2
    most = min(os.cpu_count() or 1, max(1, n_pixels // _PIXELS_PER_WORKER))
    tasks = [
        VolumeTask(
            kind=settings.kind,
            seed=len(SPLITS) * settings.seed + number,
            volume=volume,
            n_slices=settings.slices,
            size=size,
            variant=settings.variant,
            receiver=settings.receiver,
        )
        for volume in range(settings.volumes[number])
    ]
    tasks = [task for task in tasks if not writer.holds(split, f"{split}-{task.name}")]
    drawn = make_volumes(tasks, heads, workers=settings.workers or most)
    for name, volume in drawn:
        stored = volume.stored
        if settings.totals:
            n_before = sum(len(one.slices) for one in writer.records if one.split == split)
            stored = stored[: settings.totals[number] - n_before]
        name = f"{split}-{name}"
        writer.append(split, name, stored, source=volume.source, acquisition=volume.acquisition)
        if on_volume:
            n_done = sum(len(writer.volumes(each)) for each in SPLITS)
            on_volume(n_done, sum(settings.volumes), name)


def _check_room(out: Path, settings: MakeSettings) -> None:
    """Raise an error before generating if the store does not fit on its disk."""
    unfinished = unfinished_path(out)
    written = sum(file.stat().st_size for file in unfinished.glob("*.npy"))
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    disk = shutil.disk_usage(place)
    if not disk.total:
        raise ConfigError(f"{place} is a system folder without user files; name another --out")
    needed, free = settings.n_bytes - written, disk.free
    if needed > free:
        raise ConfigError(
            f"--volumes {','.join(map(str, settings.volumes))} of {settings.slices} slices take "
            f"{amount(needed)}, and {amount(free)} are free in {place}; lower --volumes, --slices"
            f"{' or --size' if settings.coils is None else ', --size or --coils'}"
        )


def _load_split_heads(settings: MakeSettings) -> tuple[dict[str, tuple[Head, ...]], list[str]]:
    """Return the heads by split, with notes; none for procedural images."""
    if not SOURCES[settings.kind].needs_sources:
        return {}, []
    paths = list(settings.sources)
    if settings.download:
        paths += download_heads(user_cache_path("kscout") / "heads")
    wanted = [split for split, count in zip(SPLITS, settings.volumes, strict=True) if count]
    return split_heads(load_heads(paths), wanted)


def _recipe(settings: MakeSettings) -> JsonObject:
    values = asdict(settings)
    del values["workers"]
    if settings.coils is None:
        for name in ("coils", "phase", "snr", "target"):
            del values[name]  # Existing stores lack it and must resume.
    values["sources"] = [path.as_posix() for path in settings.sources]
    values["size"] = settings.size or SOURCES[settings.kind].size
    recipe: JsonObject = {"command": "kscout data make", "settings": values}
    if settings.sources:
        recipe[CONTENTS] = [source_checksum(path) for path in settings.sources]
    return recipe
