"""Importing volumes of any format into a store, one at a time: memory does not grow with them."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from kscout.data.cutting import (
    Cut,
    Size,
    WrongSizeError,
    check_pixels,
    cut,
    middle_slices,
    sides,
)
from kscout.data.formats import Scan, Stack, check_memory, printable, reading
from kscout.data.formats.hdf5 import TARGET_KEYS
from kscout.data.manifest import SPLITS, Geometry
from kscout.data.resampling import Resampled, Spacing, resample, resampled_size
from kscout.data.splits import Assignment, assign_splits
from kscout.data.store import WAYS_TO_SPLIT, Store
from kscout.data.store_writer import StoreWriter, finished_store
from kscout.data.volumes import VolumeFile, read_volume, relative
from kscout.errors import ConfigError, DataError
from kscout.names import Plane

logger = logging.getLogger(__name__)

OnVolume = Callable[[int, int, str], None]
"""Called after each volume with the number done, the number in all, and the volume's name."""

LARGEST_SIDE = 4096
"""Pixels that images may have on a side."""

_LOOKED_AT = 20
"""Volumes that are read to advise on a size."""

_PSNR_CEILING = 10
"""Where the metrics' convention `paper` clamps reconstructions for PSNR."""


@final
@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """How volumes become slices of a store."""

    size: int | Size | None = None
    """Pixels that are kept in the middle: the side of a square, or rows and columns; None: all."""
    pad: int | Size | None = None
    """Images smaller than this are surrounded with zeros first; paper: 384 for brains."""
    resample: tuple[float, float] | None = None
    """Spacing of rows and columns, in mm, that images are brought to before they are cut."""
    center_volume: bool = False
    """Keep only the middle half of each volume's slices; paper: knees."""
    sample_rate: float = 1.0
    """Share of each split's volumes that is kept; paper: 0.5 for knees, 0.2 for brains."""
    acquisition: str | None = None
    """Keep only volumes of this acquisition, such as CORPD_FBK."""
    splits: Path | None = None
    """Folder of train.txt, val.txt and test.txt that name the volumes of each split."""
    held_out: float = 0.2
    """Share of volumes drawn for test, and of the rest for validation, where nothing names them."""
    seed: int = 0
    """Seed of that draw."""
    test_from_train: bool = False
    """Draw the test split from the training volumes even if there is a test folder."""
    key: str | None = None
    """Name of the images in HDF5 and .npz files; found by itself for fastMRI."""
    plane: Plane = "axial"
    """Along which NIfTI volumes are cut."""
    skip_bad: bool = False
    """Leave out what cannot be used and record it, instead of stopping."""

    def __post_init__(self) -> None:
        for name, size in (("size", self.size), ("pad", self.pad)):
            if size is not None and not all(1 <= side <= LARGEST_SIDE for side in sides(size)):
                raise ConfigError(
                    f"--{name} {_told(size)} is no image size; give 1 to {LARGEST_SIDE}"
                )
        if self.pad is not None and self.size is not None:
            less = zip(sides(self.pad), sides(self.size), strict=True)
            if any(pad < size for pad, size in less):
                raise ConfigError(
                    f"--pad {_told(self.pad)} is less than --size {_told(self.size)}; raise --pad"
                )
        if self.resample and not all(0.01 <= step <= 100 for step in self.resample):
            raise ConfigError(
                f"--resample {'x'.join(map(str, self.resample))} is no spacing; give 0.01 to 100 mm"
            )
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"--sample-rate {self.sample_rate} is not above 0 and up to 1")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"--held-out {self.held_out} is not from 0 to below 1")
        if self.splits is not None and self.test_from_train:
            raise ConfigError("--splits names the test volumes; drop it or --test-from-train")

    @classmethod
    def parse_size(cls, text: str, option: str) -> int | Size:
        """Read a size in pixels from one number, the side of a square, or from `ROWSxCOLS`."""
        try:
            rows, *cols = (int(part) for part in text.split("x"))
        except ValueError:
            rows, cols = 0, [0, 0]
        if len(cols) > 1:
            raise ConfigError(
                f"{option} {text!r} is no image size; write pixels as in 128, or rows x columns "
                "as in 640x368"
            )
        return rows if cols in ([], [rows]) else (rows, cols[0])

    @classmethod
    def parse_spacing(cls, text: str) -> tuple[float, float]:
        """Read a spacing in mm from one number, or from `ROWxCOL`."""
        try:
            steps = [float(part) for part in text.split("x")]
            rows, cols = steps * 2 if len(steps) == 1 else steps
        except ValueError as error:
            raise ConfigError(
                f"--resample {text!r} is no spacing; write mm as in 1.5, or rows x columns as in "
                "1.5x1.2"
            ) from error
        return rows, cols


def import_folder(
    source: Path | str, out: Path | str, settings: ImportSettings, on_volume: OnVolume | None = None
) -> Store:
    """Import the volumes of a folder (or one file) into a new store.

    Interrupted and called again, it goes on; called on a store that it has finished, it returns it.
    """
    source, out = Path(source), Path(out)
    assignment = assign_splits(
        source,
        lists=settings.splits,
        test_from_train=settings.test_from_train,
        held_out=settings.held_out,
        seed=settings.seed,
    ).sampled(settings.sample_rate)
    if assignment.left_out and not settings.skip_bad:
        raise DataError(f"{assignment.left_out[0][1]}, or go on without with --skip-bad")
    recipe = _recipe(source, settings, assignment)
    if done := finished_store(out, recipe):
        return done
    with StoreWriter(out, recipe) as writer:
        for name, reason in assignment.left_out:
            writer.leave_out(name, reason)
        _import_all(assignment, source, settings, writer, on_volume)
        warnings = [*assignment.doubles(), *_warnings(assignment, writer)]
        for warning in warnings:
            logger.warning(warning)
        return writer.finish(warnings)


def prepare_images(
    scan: Scan, volume: VolumeFile, settings: ImportSettings
) -> tuple[Cut, range, Geometry]:
    """Cut a volume to what is kept of it: the images, their slice numbers, where they lay."""
    path, images = volume.path, scan.images
    numbers = middle_slices(len(images)) if settings.center_volume else range(len(images))
    if not numbers:
        raise DataError(
            f"{path} has {len(images)} slices, of which none would be kept; import it without "
            "--center-volume"
        )
    images = images[numbers.start : numbers.stop]
    geometry = Geometry(images.shape[1:], scan.spacing_mm, scan.spacing_mm)
    given = (settings.size, settings.pad)
    size, pad = (None if one is None else sides(one) for one in given)
    if settings.resample:
        images = _resampled(images, scan.spacing_mm, path, settings.resample)
        geometry = replace(geometry, stored_mm=settings.resample)
        pad = pad or size
    kept = cut(images, path, size=size, pad=pad)
    # fastMRI's targets are magnitudes by their making.
    is_target = volume.format == "hdf5" and settings.key in (None, *TARGET_KEYS)
    check_pixels(kept, path, may_be_negative=is_target)
    return kept, numbers, geometry


def _resampled(
    images: Stack, spacing_mm: Spacing | None, path: Path, wanted_mm: Spacing
) -> Resampled:
    if spacing_mm is None:
        raise DataError(
            f"{path} does not tell its pixel spacing, or several; import it without --resample"
        )
    rows, cols = resampled_size(images.shape[1:], spacing_mm, wanted_mm)
    if max(rows, cols) > LARGEST_SIDE:
        raise DataError(
            f"{path} would have images of {rows}x{cols} by --resample, beyond {LARGEST_SIDE}; "
            "raise --resample"
        )
    check_memory(path, len(images) * rows * cols)
    return resample(images, spacing_mm, wanted_mm)


def _import_all(
    assignment: Assignment,
    source: Path,
    settings: ImportSettings,
    writer: StoreWriter,
    on_volume: OnVolume | None,
) -> None:
    queue = [(split, volume) for split, found in assignment.volumes.items() for volume in found]
    acquisitions: set[str] = set()
    n_kept = 0
    for n_done, (split, volume) in enumerate(queue, start=1):
        origin = relative(volume.path, source)
        if writer.holds(split, volume.name):
            n_kept += 1
        elif origin not in writer.left_out:
            acquisition = _import_one(split, volume, origin, settings, writer, queue)
            acquisitions.add(acquisition)
            n_kept += settings.acquisition in (None, acquisition)
        if on_volume:
            on_volume(n_done, len(queue), volume.name)
    if not n_kept and settings.acquisition and (acquisitions - {""} or not writer.left_out):
        found = ", ".join(sorted(acquisitions - {""})) or "none"
        raise DataError(
            f"no volume in {source} has acquisition {settings.acquisition!r}; found: {found}"
        )


def _warnings(assignment: Assignment, writer: StoreWriter) -> Iterator[str]:
    """Tell what is odd about the slices that were imported."""
    files = {volume.path for found in assignment.volumes.values() for volume in found}
    single = sorted(
        printable(path.name) for path in files if path.suffix == ".npy" and _is_single(path)
    )
    if len(single) == 1:
        yield f"{single[0]} holds one image, not a stack: it became a volume of one slice"
    elif single:
        yield (
            f"{len(single)} .npy files hold one image each, not a stack ({single[0]} first): each "
            "became a volume of one slice"
        )
    if len(sizes := writer.sizes) > 1:
        rows, cols = zip(*sizes, strict=True)
        told = ", ".join(map(_told, sizes[:3])) + ", ..." * (len(sizes) > 3)
        yield (
            f"images are of {len(sizes)} sizes ({told}), "
            f"and training takes one: --size {_told((min(rows), min(cols)))} keeps their middle, "
            f"--pad {_told((max(rows), max(cols)))} surrounds them with zeros"
        )
    if n_blank := writer.n_blank:
        told = "1 slice that holds" if n_blank == 1 else f"{n_blank} slices that hold"
        yield f"left out {told} nothing but zeros"
    if writer.peak > _PSNR_CEILING:
        yield (
            f"the largest data_range is {writer.peak:.4g}, and PSNR by the convention paper clamps "
            f"reconstructions to [0, {_PSNR_CEILING}], which makes it meaningless here: divide the "
            "images by one number for all before importing, or read SSIM"
        )
    empty = [split for split in SPLITS if not writer.volumes(split)]
    if empty and "train" not in empty:
        yield (
            f"no volume is in {' or '.join(empty)}: training needs train and val, and unseen "
            f"volumes to evaluate on are in test; {WAYS_TO_SPLIT}"
        )


def _is_single(path: Path) -> bool:
    # What cannot be read has been left out.
    with suppress(DataError), reading(path, "an array"):
        return path.is_file() and np.lib.format.open_memmap(path, mode="r").ndim == 2
    return False


def _import_one(
    split: str,
    volume: VolumeFile,
    origin: str,
    settings: ImportSettings,
    writer: StoreWriter,
    queue: Sequence[tuple[str, VolumeFile]],
) -> str:
    try:
        scan = read_volume(volume, key=settings.key, plane=settings.plane)
        acquisition = scan.acquisition
        if settings.acquisition in (None, acquisition):
            with reading(volume.path, "images"):
                kept, numbers, geometry = prepare_images(scan, volume, settings)
            shown = np.flatnonzero(kept.any(axis=(1, 2))).tolist()
            writer.append(
                split,
                volume.name,
                kept if len(shown) == len(kept) else kept[shown],
                slices=[numbers[index] for index in shown],
                source=origin,
                acquisition=acquisition,
                n_blank=len(kept) - len(shown),
                geometry=geometry,
            )
        return acquisition
    except DataError as error:
        reason = str(error)
        if isinstance(error, WrongSizeError):
            others = [volume] if settings.skip_bad else [other for _, other in queue]
            reason += f"; {_fitting_size(others, settings)}"
        if not settings.skip_bad:
            raise DataError(f"{reason}, or leave it out with --skip-bad") from error
        writer.leave_out(origin, reason)
        return ""


def _fitting_size(volumes: Sequence[VolumeFile], settings: ImportSettings) -> str:
    """Advise on sizes that fit all volumes, as far as the first of them tell."""
    found: list[Size] = []
    for volume in volumes[:_LOOKED_AT]:
        with suppress(DataError):
            scan = read_volume(volume, key=settings.key, plane=settings.plane)
            size = scan.images.shape[1:]
            if settings.resample and scan.spacing_mm:
                size = resampled_size(size, scan.spacing_mm, settings.resample)
            found.append(size)
    rows, cols = zip(*found, strict=True)
    wanted = sides(settings.size or 0)
    kept = _told((min(rows), min(cols)))
    padded = _told((max(*rows, wanted[0]), max(*cols, wanted[1])))
    return f"keep their middle with --size {kept}, surround them with zeros by --pad {padded}"


def _told(size: int | Size) -> str:
    rows, cols = sides(size)
    return str(rows) if rows == cols else f"{rows}x{cols}"


def _recipe(source: Path, settings: ImportSettings, assignment: Assignment) -> dict[str, Any]:
    """Return how to make the store again, and a hash of the names and sizes of its files."""
    files = [
        [split, volume.name, volume.n_bytes]
        for split, found in assignment.volumes.items()
        for volume in found
    ]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    values = asdict(settings) | {"splits": settings.splits and settings.splits.as_posix()}
    if settings.resample is None:
        del values["resample"]  # As in stores of 0.1, which go on.
    return {
        "command": "kscout data import",
        "source": printable(source.as_posix()),
        "settings": values,
        "files_sha256": digest,
    }
