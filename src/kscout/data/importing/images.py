"""Importing images: cropping and resampling by the paper's rules (arXiv:2010.16262)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Shaped

from kscout.config.bounds import LARGEST_SIDE, Size, sides
from kscout.data.formats import ImageScan, Stack, check_memory, reading
from kscout.data.formats.hdf5 import TARGET_KEYS
from kscout.data.importing.settings import ImportSettings, size_text
from kscout.data.importing.volumes import VolumeFile, read_volume
from kscout.data.manifest import Geometry, VolumeRecord
from kscout.data.store_writer import StoreWriter
from kscout.errors import DataError

Spacing = tuple[float, float]
"""Distance of neighboring rows, and of neighboring columns, in mm."""

Resampled = Float32[np.ndarray, "slice new_row new_col"]

_LOBES = 4
"""Zero crossings of the sinc on each side, up to the end of the window."""


def resampled_size(size: tuple[int, int], old_mm: Spacing, new_mm: Spacing) -> tuple[int, int]:
    """Return the rows and columns that cover the same field of view at another spacing."""
    rows, cols = (
        max(1, round(length * old / new))
        for length, old, new in zip(size, old_mm, new_mm, strict=True)
    )
    return rows, cols


def resample(images: Stack, old_mm: Spacing, new_mm: Spacing) -> Resampled:
    r"""Return images at another spacing with unchanged center.

    Every new pixel at $x$ is $\sum_i w(x - x_i) f_i / \sum_i w(x - x_i)$, where $w$ is a sinc
    under the main lobe of a wider one (Lanczos), as wide as the coarser of both grids, which
    prevents aliasing. Negative overshoot is clipped.
    """
    lowest = min(float(images.min()), 0.0)
    size = resampled_size(images.shape[1:], old_mm, new_mm)
    for axis in (0, 1):
        scale = new_mm[axis] / old_mm[axis]
        if not math.isclose(scale, 1):
            weights = _weights(images.shape[axis + 1], size[axis], scale)
            # Rows are summed from the left; columns from the right.
            images = weights @ images if axis == 0 else images @ weights.T
    return np.maximum(images, np.float32(lowest))


def _weights(n_old: int, n_new: int, scale: float) -> Float32[np.ndarray, "{n_new} {n_old}"]:
    """Return the weight of each old pixel in each new one; `scale` is new / old spacing."""
    places = (np.arange(n_new) - (n_new - 1) / 2) * scale + (n_old - 1) / 2
    distance = (places[:, None] - np.arange(n_old)) / max(scale, 1.0)
    weights = np.sinc(distance) * np.sinc(distance / _LOBES) * (np.abs(distance) < _LOBES)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


Images = Shaped[np.ndarray, "slice _ _"]
Cut = Float32[np.ndarray, "kept kept_row kept_col"]

_NEGATIVE_SHARE = 0.01
"""Resampling leaves negative pixels of less than this fraction of the peak."""


def store_images(
    split: str, volume: VolumeFile, origin: str, settings: ImportSettings, writer: StoreWriter
) -> str:
    """Add the images of a volume to a store, and return its acquisition."""
    scan = read_images(volume, settings)
    if settings.acquisition not in (None, scan.acquisition):
        return scan.acquisition
    with reading(volume.path, "images"):
        kept, numbers, geometry = prepare_images(scan, volume, settings)
    shown = np.flatnonzero(kept.any(axis=(1, 2))).tolist()
    writer.append(
        split,
        volume.name,
        kept if len(shown) == len(kept) else kept[shown],
        slices=[numbers[index] for index in shown],
        source=origin,
        acquisition=scan.acquisition,
        n_blank=len(kept) - len(shown),
        geometry=geometry,
    )
    return scan.acquisition


def read_images(volume: VolumeFile, settings: ImportSettings) -> ImageScan:
    """Read a volume with phase encoding along columns."""
    scan = read_volume(volume, settings)
    if settings.phase_encoding == "columns":
        return scan
    spacing = scan.spacing_mm
    turned = np.ascontiguousarray(scan.images.swapaxes(1, 2))
    return scan._replace(images=turned, spacing_mm=spacing and (spacing[1], spacing[0]))


def prepare_images(
    scan: ImageScan, volume: VolumeFile, settings: ImportSettings
) -> tuple[Cut, range, Geometry]:
    """Crop a volume: return the images, their slice numbers and the geometry."""
    path, images = volume.path, scan.images
    numbers = kept_slices(len(images), path, settings)
    images = images[numbers.start : numbers.stop]
    slice_mm = scan.slice_mm if scan.slice_mm and 0 < scan.slice_mm < math.inf else None
    geometry = Geometry(
        images.shape[1:],
        scan.spacing_mm,
        scan.spacing_mm,
        notes=_axes_note(scan, volume, settings),
        slice_mm=slice_mm,
    )
    given = (settings.size, settings.pad)
    size, pad = (None if one is None else sides(one) for one in given)
    if settings.resample:
        images = _resampled(images, scan.spacing_mm, path, settings.resample)
        geometry = replace(geometry, stored_mm=settings.resample)
        pad = pad or size
    kept = cut(images, path, size=size, pad=pad)
    # fastMRI's targets are magnitudes by construction.
    is_target = volume.format == "hdf5" and settings.key in (None, *TARGET_KEYS)
    if settings.absolute:
        kept = np.abs(kept)
    check_pixels(kept, path, may_be_negative=is_target)
    return kept if settings.divide is None else kept / settings.divide, numbers, geometry


def _axes_note(
    scan: ImageScan, volume: VolumeFile, settings: ImportSettings
) -> tuple[str, ...] | None:
    """Return a warning for an array whose last axis may be that of the slices."""
    n_slices, *sides = scan.images.shape
    n_rows, n_cols = sides if settings.phase_encoding == "columns" else reversed(sides)
    is_named = settings.axes is not None or volume.format not in ("numpy", "hdf5")
    if is_named or volume.parts or n_cols >= min(n_slices, n_rows):
        return None
    return (
        "the last axis of the array is the shortest and became the columns; if it is the slices, "
        "name the axes, as in --axes row,col,slice",
    )


def _resampled(
    images: Stack, spacing_mm: Spacing | None, path: Path, wanted_mm: Spacing
) -> Resampled:
    if spacing_mm is None:
        raise DataError(f"{path} has no pixel spacing, or several; import it without --resample")
    rows, cols = resampled_size(images.shape[1:], spacing_mm, wanted_mm)
    if max(rows, cols) > LARGEST_SIDE:
        raise DataError(
            f"{path} would have images of {rows}x{cols} by --resample, beyond {LARGEST_SIDE}; "
            "raise --resample"
        )
    check_memory(path, len(images) * rows * cols)
    return resample(images, spacing_mm, wanted_mm)


def kept_slices(n_slices: int, path: Path, settings: ImportSettings) -> range:
    """Return the numbers of the slices to import."""
    numbers = middle_slices(n_slices) if settings.center_volume else range(n_slices)
    if not numbers:
        raise DataError(
            f"{path} has {n_slices} slices, of which none would be kept; import it without "
            "--center-volume"
        )
    return numbers


def single_slices(records: Sequence[VolumeRecord], *, is_raw: bool) -> Iterator[str]:
    """Describe the consequence of volumes with one slice each; `is_raw` for k-space."""
    single = sorted(record.source for record in records if len(record.slices) == 1)
    if len(single) == 1:
        yield f"{single[0]} became a volume of one slice"
    elif single:
        advice = 'join them by --group, as in --group "(.+)_" or "(.+)/"'
        if is_raw:
            advice = "save the slices of a patient in one file"
        yield (
            f"{len(single)} files became a volume of one slice each ({single[0]} first): if they "
            "are slices of fewer patients, training and test share patients, and intervals over "
            f"volumes are too narrow; {advice}"
        )


def middle_slices(n_slices: int) -> range:
    """Return the middle half of a volume, which shows the anatomy."""
    return range(n_slices // 4, 3 * n_slices // 4)


def zero_pad(images: Images, size: int | Size) -> Images:
    """Surround images with zeros up to `size`; an odd pixel goes to the top and left."""
    wanted = zip(sides(size), images.shape[-2:], strict=True)
    margins = [max(side - length, 0) for side, length in wanted]
    widths = [(0, 0), *(((margin + 1) // 2, margin // 2) for margin in margins)]
    return np.pad(images, widths)


def center_crop(images: Images, size: int | Size) -> Images:
    """Return the middle of images."""
    n_rows, n_cols = sides(size)
    top, left = (images.shape[-2] - n_rows) // 2, (images.shape[-1] - n_cols) // 2
    return images[:, top : top + n_rows, left : left + n_cols]


def cut(images: Stack, path: Path, *, size: Size | None, pad: Size | None) -> Cut:
    """Return the middle of images as configured by `size` and `pad`."""
    n_rows, n_cols = images.shape[-2:]
    if not n_rows or not n_cols:
        raise DataError(f"{path} has images of {n_rows}x{n_cols}, without a pixel; save it again")
    if pad is not None:
        check_memory(path, len(images) * max(pad[0], n_rows) * max(pad[1], n_cols))
        images = zero_pad(images, pad)
    kept = size or pad or (n_rows, n_cols)
    if images.shape[-2] < kept[0] or images.shape[-1] < kept[1]:
        smaller = (min(kept[0], n_rows), min(kept[1], n_cols))
        raise DataError(
            f"{path} has images of {n_rows}x{n_cols}, smaller than --size {size_text(kept)}; lower "
            f"it to {size_text(smaller)}, or pad images with zeros by --pad {size_text(kept)}"
        )
    return np.ascontiguousarray(center_crop(images, kept))


def check_pixels(images: Stack, path: Path, *, may_be_negative: bool) -> None:
    """Raise an error for images that are not finite magnitudes."""
    n_bad = int(images.size - np.isfinite(images).sum())
    if n_bad:
        raise DataError(f"{path} has {n_bad} pixels that are NaN or infinite; repair it")
    lowest, peak = float(images.min()), float(images.max())
    if not may_be_negative and lowest < -_NEGATIVE_SHARE * peak:
        raise DataError(
            f"{path} has pixels from {lowest:.3g} to {peak:.3g} instead of magnitudes, which are "
            "not negative; take absolute values with --absolute, or shift them to start at 0 "
            "before importing"
        )
    if peak <= 0:
        raise DataError(
            f"{path} contains only zeros in the {len(images)} slices to import; repair it"
        )
