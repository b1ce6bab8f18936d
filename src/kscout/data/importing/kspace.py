"""Importing k-space: fully sampled slices of all coils, streamed in bounded memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Complex64

from kscout.columns import center_columns
from kscout.data.contents import CHUNK_BYTES
from kscout.data.formats import hdf5, numpy_array, reading
from kscout.data.formats.arrays import holds_kspace
from kscout.data.formats.raw import RawScan, Slices
from kscout.data.importing.images import kept_slices
from kscout.data.importing.kspace_cutting import Cutting
from kscout.data.importing.settings import ImportSettings
from kscout.data.importing.volumes import VolumeFile, find_volumes, read_raw
from kscout.data.manifest import Geometry, VolumeRecord
from kscout.data.store_writer import StoreWriter
from kscout.data.transforms import to_kspace
from kscout.data.unfinished import VolumePart
from kscout.errors import DataError
from kscout.names import Origin
from kscout.physics.coils import check_compression, compress

Filled = Bool[np.ndarray, " col"]
"""Mask of columns with nonzero values."""

_LOOKED_AT = 20
"""Number of volumes that are examined to detect k-space."""
_WHAT = "k-space"
_IS_REAL = {"hdf5": hdf5.is_real, "numpy": numpy_array.is_real}
"""By format of arrays: whether a file contains real numbers."""
_MOST_COILS, _LEAST_PIXELS = 32, 8
"""Numbers of coils, and of rows or columns, beyond which a volume causes a warning."""
_UNUSUAL = (
    "{1} coils with {2} rows and {3} columns are unusual; if the axes have another order, name "
    "them with --axes, as in slice,row,col,coil"
)
_OFF_CENTER = 0.7
"""Fraction of the energy in the outer quarter of the columns, from which on the center of k-space
cannot be in the middle."""
_SPREAD = 0.3
"""Fraction of the energy outside the middle of an array from which on it may be an image."""


def is_kspace(source: Path, settings: ImportSettings) -> bool:
    """Return whether an import is of k-space: as requested, or if there is nothing else."""
    if settings.names_kspace:
        return True
    images = find_volumes(source)
    if not images:
        return bool(find_volumes(source, raw=True))
    looked = images[:_LOOKED_AT]
    if settings.axes is not None:
        return bool({"coil", "average"} & set(settings.axes)) or not all(
            volume.format in _IS_REAL
            # Opening a pipe would block.
            and volume.path.is_file()
            and _IS_REAL[volume.format](volume.path, settings.key)
            for volume in looked
        )
    return settings.key is None and all(
        volume.format == "hdf5" and holds_kspace(volume.path) for volume in looked
    )


def store_kspace(
    split: str, volume: VolumeFile, origin: str, settings: ImportSettings, writer: StoreWriter
) -> str:
    """Add the k-space of a volume to a store, and return its acquisition."""
    path = volume.path
    scan = read_raw(volume, settings)
    if scan.shape[1] > _MOST_COILS or min(scan.shape[2:]) < _LEAST_PIXELS:
        scan = scan._replace(notes=(*scan.notes, _UNUSUAL.format(*scan.shape)))
    scan = scan.centered(settings.origin)
    if settings.acquisition not in (None, scan.acquisition):
        return scan.acquisition
    numbers = kept_slices(scan.shape[0], path, settings)
    filled, doubt = _filled_columns(scan, numbers, path, settings.origin)
    scan = scan._replace(notes=(*scan.notes, *doubt))
    cutting = Cutting.plan(scan, path, settings)
    _check_sampling(filled, scan, cutting, path, settings)
    matrix = filled.copy()
    matrix[slice(*scan.encoded or (0, 0))] = True
    columns = np.flatnonzero(cutting.columns(matrix))
    if not len(columns):
        raise DataError(f"{path} has no column left that was measured; raise --resize")
    divide = settings.divide or 1.0
    parts = _parts(scan, numbers, filled, cutting, path, settings)
    writer.append(
        split,
        volume.name,
        (part._replace(stored=part.stored / divide) for part in parts) if divide != 1 else parts,
        source=origin,
        acquisition=scan.acquisition,
        geometry=_geometry(scan, cutting, settings),
        selectable=(int(columns[0]), int(columns[-1]) + 1),
    )
    return scan.acquisition


def _geometry(scan: RawScan, cutting: Cutting, settings: ImportSettings) -> Geometry:
    found, n_coils = cutting.geometry(scan), scan.shape[1]
    if settings.compress is None:
        return found
    is_compressed = n_coils > settings.compress
    if not is_compressed:
        note = f"all {n_coils} coils kept, since --compress is {settings.compress}"
    else:
        note = f"{n_coils} coils compressed to {settings.compress}"
        note += f" by {settings.compress_center} central columns, which acquisitions start from"
    notes = (*(found.notes or ()), note)
    return replace(found, notes=notes, is_compressed=is_compressed)


def virtual_coils(writer: StoreWriter, settings: ImportSettings) -> tuple[int, int] | None:
    """Return virtual coils and central columns for the manifest; None without compression."""
    found = [record.geometry for record in writer.records]
    # A journal of an earlier version does not specify it.
    is_any = any(geometry is None or geometry.is_compressed is not False for geometry in found)
    if settings.compress is None or not is_any:
        return None
    return settings.compress, settings.compress_center


def caveats(writer: StoreWriter) -> Iterator[str]:
    """Describe properties of k-space that matter for the interpretation of results."""
    found = [record.geometry for record in writer.records if record.geometry is not None]
    if n_cut := sum(geometry.is_computed for geometry in found):
        yield (
            f"{_volumes(n_cut)} cropped along phase encoding, or made of complex "
            "images: the columns of this store are computed, not measured by a scanner"
        )
    if n_lacking := sum(record.measured is not None for record in writer.records):
        yield (
            f"{_volumes(n_lacking)} with missing columns (prospective): such k-space can only be "
            "reconstructed, since there is no ground truth for training or scoring"
        )


def noted(records: Iterable[VolumeRecord]) -> Iterator[str]:
    """Summarize the notes on volumes."""
    found = [record.geometry for record in records if record.geometry is not None]
    notes = Counter(note for geometry in found for note in geometry.notes or ())
    for note, count in notes.items():
        yield f"{_volumes(count)}: {note}"


def _volumes(count: int) -> str:
    return "1 volume" if count == 1 else f"{count} volumes"


def _read(scan: RawScan, first: int, last: int, path: Path) -> Slices:
    with reading(path, _WHAT):
        values = scan.read(first, last)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=(1, 2, 3)))
    if len(bad):
        raise DataError(
            f"{path} has NaN or infinite values in slice {first + int(bad[0])}; repair it"
        )
    return values if scan.measured is None else values * scan.measured


def _filled(values: Slices, first: int, path: Path) -> Bool[np.ndarray, "slice col"]:
    """Return the nonzero columns of slices, which all coils with signal must share."""
    held = np.asarray(values.any(axis=2))
    filled = np.asarray(held.any(axis=1))
    lacks = (held != filled[:, None]) & held.any(axis=2, keepdims=True)
    if lacks.any():
        number, coil, column = np.argwhere(lacks)[0].tolist()
        raise DataError(
            f"{path} is empty in column {column} of coil {coil} of slice {first + number}, "
            "which other coils measured; repair it, or save it without that coil"
        )
    return filled


def _filled_columns(
    scan: RawScan, numbers: Sequence[int], path: Path, origin: Origin
) -> tuple[Filled, tuple[str, ...]]:
    """Return the nonzero columns of the first nonempty slice, from the middle on, and a warning."""
    half = len(numbers) // 2
    for number in (*numbers[half:], *numbers[:half]):
        values = _read(scan, number, number + 1, path)
        (filled,) = _filled(values, number, path)
        if filled.any():
            _check_center(values, path, origin)
            return filled, _domain_note(values, origin)
    raise DataError(f"{path} contains only zeros in the {len(numbers)} slices to import; repair it")


def _check_center(values: Slices, path: Path, origin: Origin) -> None:
    """Raise an error for k-space with most of its energy in the outer columns."""
    n_cols = values.shape[-1]
    energy = np.square(np.abs(values), dtype=np.float64).sum(axis=(0, 1, 2))
    distance = np.abs(np.arange(n_cols) - n_cols // 2)
    share = energy[8 * distance > 3 * n_cols].sum() / energy.sum()
    if share < _OFF_CENTER:
        return
    remedy = "--origin corner, or plain for numpy.fft.fft2 of a centered image"
    raise DataError(
        f"{path} has {share:.0%} of its energy in the outer quarter of the columns, "
        "so that the center of k-space does not lie in the middle; import it with "
        f"{remedy if origin == 'center' else f'another --origin than {origin}'}"
    )


def _domain_note(values: Slices, origin: Origin) -> tuple[str, ...]:
    """Return a warning for values that are spread like an image, and whose transform is not."""
    outer, of_transform = _outer_share(values), _outer_share(to_kspace(values))
    if outer < max(_SPREAD, 4 * of_transform):
        return ()
    found, remedy = "k-space", "import k-space without --origin image"
    if origin != "image":
        found, remedy = "complex images", "import those with --origin image"
    return (
        "the energy is spread as in an image, and that of the Fourier transform concentrates in "
        f"the middle as in k-space, so the file seems to contain {found}; {remedy}",
    )


def _outer_share(values: Slices) -> float:
    """Return the fraction of the energy outside the middle quarter of rows and columns."""
    energy = np.square(np.abs(values), dtype=np.float64).sum(axis=(0, 1))
    rows, cols = (slice(n // 2 - n // 8, n // 2 + n // 8 + 1) for n in energy.shape)
    return 1 - float(energy[rows, cols].sum() / energy.sum())


def _check_sampling(
    filled: Filled, scan: RawScan, cutting: Cutting, path: Path, settings: ImportSettings
) -> None:
    """Raise an error for gaps between measured columns, unless undersampling is allowed."""
    places = np.flatnonzero(filled)
    first, end = scan.encoded or (places[0], 0)
    first, last = min(first, places[0]), max(end - 1, places[-1])
    if len(places) == (n_matrix := last - first + 1):
        return
    if not settings.prospective:
        raise DataError(
            f"{path} is undersampled: {len(places)} of {n_matrix} columns were measured, from "
            f"column {first} to {last}, and the others cannot be acquired; import it for "
            "reconstruction only with --prospective"
        )
    if cutting.is_computed:
        raise DataError(
            f"{path} is undersampled, and cropping its phase direction would mix measured columns "
            f"with others; keep all {cutting.size[1]} columns"
        )


def _parts(
    scan: RawScan,
    numbers: range,
    filled: Filled,
    cutting: Cutting,
    path: Path,
    settings: ImportSettings,
) -> Iterator[VolumePart]:
    n_bytes = 8 * int(np.prod(scan.shape[1:]))
    step = max(1, CHUNK_BYTES // n_bytes)
    for first in range(numbers.start, numbers.stop, step):
        last = min(first + step, numbers.stop)
        values = _read(scan, first, last, path)
        found = _filled(values, first, path)
        shown = np.flatnonzero(found.any(axis=1))
        for place in shown:
            if not settings.prospective and not np.array_equal(found[place], filled):
                raise DataError(
                    f"{path} measured {int(found[place].sum())} columns of slice {first + place}, "
                    f"and others, or {int(filled.sum())} columns, of another slice; split it up, "
                    "or import it for reconstruction only with --prospective"
                )
            _check_sampling(found[place], scan, cutting, path, settings)
        slices = tuple(first + int(place) for place in shown)
        kept = cutting.apply(values if len(shown) == len(values) else values[shown])
        masks = [cutting.columns(found[place]) for place in shown]
        columns = tuple(tuple(np.flatnonzero(mask).tolist()) for mask in masks)
        yield VolumePart(
            _compressed(kept, masks, path, settings),
            slices,
            len(values) - len(shown),
            columns if settings.prospective else (),
        )


def _compressed(
    kspace: Slices, masks: Sequence[Filled], path: Path, settings: ImportSettings
) -> Complex64[np.ndarray, "slice virtual row col"]:
    """Return k-space compressed to virtual coils, if requested and if there are more coils."""
    if settings.compress is None or not len(kspace) or kspace.shape[1] <= settings.compress:
        return kspace
    n_coils, n_center, n_cols = settings.compress, settings.compress_center, kspace.shape[-1]
    check_compression(n_coils, n_center, n_cols)
    center = center_columns(n_cols, n_center)
    if not all(mask[center.start : center.stop].all() for mask in masks):
        raise DataError(
            f"{path} lacks some of the {n_center} central columns that its coils would be "
            "compressed by; lower --compress-center, or keep all coils"
        )
    found = compress(torch.from_numpy(kspace), n_coils=n_coils, n_center=n_center)
    return found.contiguous().numpy()
