"""Importing volumes of any format into a store, one at a time, in constant memory."""

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from kscout.data.formats import listed, printable
from kscout.data.formats.hdf5 import acquisition_in
from kscout.data.importing.images import single_slices, store_images
from kscout.data.importing.kspace import caveats, is_kspace, noted, store_kspace, virtual_coils
from kscout.data.importing.settings import ImportSettings, size_text
from kscout.data.importing.splits import Assignment, assign_splits
from kscout.data.importing.volumes import VolumeFile, find_stores, relative
from kscout.data.integrity import source_checksum
from kscout.data.kinds import IMAGES, TARGETS
from kscout.data.manifest import SPLITS
from kscout.data.store import WAYS_TO_SPLIT, Store
from kscout.data.store_writer import CONTENTS, OnVolume, StoreWriter, finished_store
from kscout.errors import DataError
from kscout.json_types import JsonObject
from kscout.metrics import PSNR_CEILING

logger = logging.getLogger(__name__)


def import_folder(
    source: Path | str, out: Path | str, settings: ImportSettings, on_volume: OnVolume | None = None
) -> Store:
    """Import the volumes of a folder (or one file) into a new store.

    A second call resumes an interrupted import; a finished store is returned unchanged.
    """
    source, out = _named(Path(source)), Path(out)
    settings = replace(settings, raw=is_kspace(source, settings))
    assignment = assign_splits(source, settings).sampled(settings.sample_rate)
    if assignment.left_out and not settings.skip_bad:
        raise DataError(f"{assignment.left_out[0][1]}, or continue without it by --skip-bad")
    recipe = _recipe(source, settings, assignment)
    of_0_2 = _recipe_of_0_2(recipe, assignment)
    if done := finished_store(out, recipe, of_0_2=of_0_2, files=assignment.files):
        return done
    kind = TARGETS[settings.target] if settings.raw else IMAGES
    with StoreWriter(out, recipe, kind=kind, sources=assignment.files) as writer:
        for name, reason in assignment.left_out:
            writer.leave_out(name, reason)
        _import_all(assignment, source, settings, writer, on_volume)
        warnings = [*assignment.doubles(), *_warnings(writer, settings)]
        if stores := find_stores(source):
            skipped = "skipped stores in the source, which contain no new volumes"
            warnings.insert(0, f"{skipped}: {listed(stores)}")
        for warning in warnings:
            logger.warning(warning)
        if _contents(settings, assignment) != recipe[CONTENTS]:
            raise DataError(f"files in {source} changed during the import; repeat the command")
        return writer.finish(warnings, virtual=virtual_coils(writer, settings))


def _named(source: Path) -> Path:
    """Return the actual file: BART's programs name pairs of files without suffix."""
    if source.suffix != ".hdr" and source.exists():
        return source
    pair = source.parent / f"{source.name.removesuffix('.hdr')}.cfl"
    return pair if pair.is_file() else source


def _import_all(
    assignment: Assignment,
    source: Path,
    settings: ImportSettings,
    writer: StoreWriter,
    on_volume: OnVolume | None,
) -> None:
    queue = [(split, volume) for split, found in assignment.volumes.items() for volume in found]
    if settings.acquisition is not None:
        _check_acquisition([volume for _, volume in queue], source, settings.acquisition)
    acquisitions: set[str] = set()
    n_kept = 0
    for n_done, (split, volume) in enumerate(queue, start=1):
        origin = relative(volume.path, source)
        if writer.holds(split, volume.name):
            n_kept += 1
        elif origin not in writer.left_out:
            acquisition = _import_one(split, volume, origin, settings, writer)
            acquisitions.add(acquisition)
            n_kept += settings.acquisition in (None, acquisition)
        if on_volume:
            on_volume(n_done, len(queue), volume.name)
    if not n_kept and settings.acquisition and (acquisitions - {""} or not writer.left_out):
        raise _no_acquisition(source, settings.acquisition, acquisitions)


def _check_acquisition(queue: Sequence[VolumeFile], source: Path, wanted: str) -> None:
    """Raise an error for an acquisition that no file names, if all files name theirs."""
    named = {
        "" if volume.format in ("numpy", "nifti") else acquisition_in(volume.path)
        for volume in queue
    }
    found = {one for one in named if one is not None}
    if len(found) == len(named) and wanted not in found:
        raise _no_acquisition(source, wanted, found)


def _no_acquisition(source: Path, wanted: str, found: Collection[str]) -> DataError:
    listed = ", ".join(sorted({*found} - {""})) or "none"
    return DataError(f"no volume in {source} has acquisition {wanted!r}; found: {listed}")


def _warnings(writer: StoreWriter, settings: ImportSettings) -> Iterator[str]:
    """Describe unusual properties of the imported slices."""
    yield from caveats(writer) if settings.raw else ()
    yield from single_slices(writer.records, is_raw=settings.raw)
    yield from noted(writer.records)
    if len(sizes := sorted({record.size for record in writer.records})) > 1:
        rows, cols = zip(*sizes, strict=True)
        named = ", ".join(map(size_text, sizes[:3])) + ", ..." * (len(sizes) > 3)
        pad = "resize" if settings.raw else "pad"
        yield (
            f"images are of {len(sizes)} sizes ({named}), and training needs one: --size "
            f"{size_text((min(rows), min(cols)))} keeps their middle, --{pad} "
            f"{size_text((max(rows), max(cols)))} pads them with zeros"
        )
    if n_blank := writer.n_blank:
        containing = "1 slice that contains" if n_blank == 1 else f"{n_blank} slices that contain"
        yield f"left out {containing} only zeros"
    peak = max((record.data_range for record in writer.records), default=0.0)
    if peak > PSNR_CEILING:
        yield (
            f"the largest data_range is {peak:.4g}, and PSNR by the convention paper clamps "
            f"reconstructions to [0, {PSNR_CEILING}], which makes it meaningless here: import with "
            f"--divide {float(f'{peak * (settings.divide or 1):.1g}'):g}, the same for all data "
            "that you compare, or use SSIM"
        )
    empty = [split for split in SPLITS if not writer.volumes(split)]
    if writer.volumes("test") and len(writer.records) == 1:
        yield f"the only volume is in test, for evaluation; training needs more: {WAYS_TO_SPLIT}"
    elif empty and "train" not in empty:
        existing = ". To evaluate trained policies on the existing split: --split train"
        yield (
            f"no volume is in {' or '.join(empty)}: training needs train and val, and evaluation "
            f"needs unseen volumes in test; {WAYS_TO_SPLIT}{existing * ('test' in empty)}"
        )


def _import_one(
    split: str, volume: VolumeFile, origin: str, settings: ImportSettings, writer: StoreWriter
) -> str:
    store = store_kspace if settings.raw else store_images
    try:
        return store(split, volume, origin, settings, writer)
    except DataError as error:
        if not settings.skip_bad:
            raise DataError(f"{error}, or leave it out with --skip-bad") from error
        writer.leave_out(origin, str(error))
        return ""


def _recipe(source: Path, settings: ImportSettings, assignment: Assignment) -> JsonObject:
    """Return the recipe of the store, with a hash of the names and contents of its files."""
    values = asdict(settings) | {
        name: path and path.as_posix()
        for name, path in (("splits", settings.splits), ("header", settings.header))
    }
    # Existing stores lack them and must resume.
    added = {"resample", "divide", "absolute", "group", "phase_encoding", "compress"}
    if not settings.raw:
        added |= {"axes", "raw", "crop", "resize", "header", "origin", "target", "prospective"}
    if settings.compress is None:
        del values["compress_center"]
    for item in fields(ImportSettings):
        if item.name in added and values[item.name] == item.default:
            del values[item.name]
    return {
        "command": "kscout data import",
        "source": printable(source.as_posix()),
        "settings": values,
        CONTENTS: _contents(settings, assignment),
    }


def _contents(settings: ImportSettings, assignment: Assignment) -> str:
    header = [] if settings.header is None else [source_checksum(settings.header)]
    files = [
        [split, volume.name, *map(source_checksum, volume.files)]
        for split, found in assignment.volumes.items()
        for volume in found
    ]
    return _digest([*files, header])


def _recipe_of_0_2(recipe: JsonObject, assignment: Assignment) -> JsonObject:
    """Return the recipe that version 0.2 wrote, with a hash of the names and sizes of its files."""
    files = [
        [split, volume.name, sum(path.stat().st_size for path in volume.files if path.is_file())]
        for split, found in assignment.volumes.items()
        for volume in found
    ]
    others = {key: value for key, value in recipe.items() if key != CONTENTS}
    return {**others, "files_sha256": _digest(files)}


def _digest(value: list[Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
