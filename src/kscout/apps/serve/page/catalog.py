"""What the page offers: slices of a dataset and of dropped files, reconstructions and policies.

Dropped files are read from a private folder, never by their names.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import numpy as np
import torch
from PIL import Image

from kscout import reconstruction
from kscout.acquisition.plan import Plan
from kscout.config.bounds import LARGEST_SIDE
from kscout.core import Policy, Reconstructor
from kscout.data.formats import ImageScan, printable, reading
from kscout.data.importing.images import prepare_images
from kscout.data.importing.settings import ImportSettings
from kscout.data.importing.volumes import VolumeFile, find_volumes, read_volume
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError, unknown_name
from kscout.evaluation.records.run_names import run_label
from kscout.evaluation.running.entries import (
    EvaluationEntry,
    budgets_of,
    check_distinct,
    is_fitted,
    resolve,
)
from kscout.json_types import JsonObject
from kscout.names import FORMATS, POLICIES
from kscout.policies.fixed import FixedOrder

_PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF"}
_PICTURES |= {".tiff": "TIFF", ".gif": "GIF", ".webp": "WEBP"}
_VOLUMES = [FORMATS[name] for name in ("nifti", "dicom", "numpy")]
"""Formats of volumes; not HDF5, whose files may refer to other files."""
_SUFFIXES = (*_PICTURES, *(suffix for one in _VOLUMES for suffix in one.suffixes))
_MOST_PIXELS = 2**24
"""Largest number of pixels of all stored slices of a file, at the size of acquisition."""
_MOST_CHARACTERS = 80
"""Characters of a name on the page."""


def read_dropped(content: bytes, name: str, size: tuple[int, int]) -> SliceSet:
    """Return the slices of a file, resampled to a size.

    The suffix of its name in the browser selects the format; the rest is only displayed.
    """
    label = printable(name.replace("\\", "/").rpartition("/")[2])[:_MOST_CHARACTERS] or "a file"
    suffix = next((one for one in _SUFFIXES if name.lower().endswith(one)), "")
    with TemporaryDirectory(prefix="kscout-") as folder:
        path = Path(folder) / f"dropped{suffix}"
        path.write_bytes(content)
        try:
            read: Callable[[Path], tuple[VolumeFile, ImageScan]]
            read = _picture if suffix in _PICTURES else _volume
            pixels, numbers = _fitted(*read(path), size)
        except DataError as error:
            raise DataError(str(error).replace(str(path), label)) from error
    images = torch.from_numpy(pixels)
    return SliceSet.from_images(images, [label] * len(pixels), slices=numbers, name=label)


def _volume(path: Path) -> tuple[VolumeFile, ImageScan]:
    volumes = find_volumes(path)
    if not volumes:
        known = ", ".join(one.summary for one in _VOLUMES)
        raise DataError(f"{path} is none of these: {known}, or a picture; drop another file")
    return volumes[0], read_volume(volumes[0])


def _picture(path: Path) -> tuple[VolumeFile, ImageScan]:
    kinds = tuple(dict.fromkeys(_PICTURES.values()))
    with reading(path, "a picture", "save it again"), Image.open(path, formats=kinds) as picture:
        if max(picture.size) > LARGEST_SIDE:
            raise DataError(f"{path} has more than {LARGEST_SIDE} pixels on a side; shrink it")
        # Images with more than 8 bits keep their values; colors become gray levels.
        gray = picture.convert("F" if picture.mode.startswith(("I", "F")) else "L")
        pixels = np.asarray(gray, dtype=np.float32)
    return VolumeFile(path.name, path, "picture"), ImageScan(pixels[None])


def _fitted(
    volume: VolumeFile, scan: ImageScan, size: tuple[int, int]
) -> tuple[np.ndarray, list[int]]:
    """Resample whole images to a size; skip blank slices."""
    n_slices, *sides = scan.images.shape
    n_kept = min(n_slices, max(1, _MOST_PIXELS // (size[0] * size[1])))
    first = (n_slices - n_kept) // 2
    if not all(sides):
        raise DataError(f"{volume.path} has images without a pixel; drop another file")
    scale = max(length / target for length, target in zip(sides, size, strict=True))
    if not 0.01 <= scale <= 100:
        raise DataError(f"{volume.path} has images of {sides[0]}x{sides[1]}; drop another file")
    # Resample in pixels and ignore the spacing in mm, to show the whole image.
    scan = scan._replace(images=scan.images[first : first + n_kept], spacing_mm=(1.0, 1.0))
    settings = ImportSettings(size=size, pad=size, resample=(scale, scale), absolute=True)
    with reading(volume.path, "images"):
        pixels, _, _ = prepare_images(scan, volume, settings)
    filled = np.flatnonzero(pixels.any(axis=(1, 2)))
    return pixels[filled], (filled + first).tolist()


_N_DROPPED = 8
"""Files in memory; the least recently used one is removed first."""
_FIRST = ("test", "val", "train")


@final
@dataclass(frozen=True)
class SliceSource:
    """Slices of one matrix size."""

    name: str
    """Name in addresses of the page."""
    title: str
    slices: SliceSet

    def table(self) -> JsonObject:
        """Return the source as JSON: its volumes in order, each with its slice numbers."""
        pairs = zip(self.slices.volumes, self.slices.slices, strict=True)
        volumes = [(x, [n for _, n in group]) for x, group in groupby(pairs, itemgetter(0))]
        _, n_rows, n_cols = self.slices.shape
        sizes = {"n_rows": n_rows, "n_cols": n_cols}
        return {"name": self.name, "title": self.title, "volumes": volumes, **sizes}


@final
class Catalog:
    """Finds slices by name; thread-safe."""

    def __init__(self, data: Path | None, size: tuple[int, int]) -> None:
        self._stored = {} if data is None else _stored(Store.open(data))
        first = next(iter(self._stored.values()), None)
        self.size = size if first is None else first.slices.shape[1:]
        self._dropped: OrderedDict[str, SliceSource] = OrderedDict()
        self._lock = threading.Lock()

    def sources(self) -> list[SliceSource]:
        """Return all sources, the test split first."""
        with self._lock:
            return [*self._stored.values(), *self._dropped.values()]

    def find(self, name: str) -> SliceSource:
        """Return the slices of a name in an address."""
        with self._lock:
            if name in self._dropped:
                self._dropped.move_to_end(name)
            source = self._stored.get(name) or self._dropped.get(name)
        if source is None:
            raise DataError("these slices are not here; choose others, or drop their file again")
        return source

    def drop(self, content: bytes, name: str) -> SliceSource:
        """Add a file; the same content gets the same name."""
        slices = read_dropped(content, name, self.size)
        key = f"file-{hashlib.sha256(content).hexdigest()[:16]}"
        with self._lock:
            self._dropped[key] = SliceSource(key, slices.name, slices)
            self._dropped.move_to_end(key)
            while len(self._dropped) > _N_DROPPED:
                self._dropped.popitem(last=False)
            return self._dropped[key]


def _stored(store: Store) -> dict[str, SliceSource]:
    sources = {}
    arrays = sorted(store.manifest.arrays, key=lambda one: _FIRST.index(one.split))
    for array in arrays:
        is_one = sum(other.split == array.split for other in arrays) == 1
        name = array.split if is_one else "{}-{}x{}".format(array.split, *array.size)
        slices = store.split(array.split, size=array.size, lazy=True)
        sources[name] = SliceSource(name, f"{store.name}, {name}", slices)
    return sources


_ALWAYS = ("center-out", "random", "oracle")
"""Policies that are always offered, in addition to those of the command line."""
_SIDE = 128
"""Side of images without another source of the size."""


@final
class Models:
    """Loads the reconstructions and policies of the command line; all must be usable."""

    def __init__(
        self, reconstructors: Sequence[str], policies: Sequence[str], *, device: torch.device
    ) -> None:
        self.device = device
        named = {run_label(Path(x)) if Path(x).exists() else x: x for x in reconstructors}
        if len(named) < len(reconstructors):
            raise ConfigError("two reconstructions have the same name; rename a folder")
        self._reconstructors = {name: reconstruction.load(one) for name, one in named.items()}
        self._frozen: dict[tuple[str, int, int], Reconstructor] = {}
        self._policies: dict[str, EvaluationEntry | None] = {}
        files = [one for one in policies if one not in POLICIES or Path(one).exists()]
        sizes = ((_SIDE, _SIDE), Plan(1, 1))
        loaded = [resolve(Path(one) if Path(one).exists() else one, *sizes)[0] for one in files]
        check_distinct(loaded)
        for one in policies:
            entry = loaded[files.index(one)] if one in files else None
            if is_fitted(one) if entry is None else entry.fits:
                raise ConfigError(
                    f"policy {one!r} is fitted on data; give a fitted one: a run folder, a weights "
                    "file or a name of the zoo"
                )
            if entry is None:
                resolve(one, *sizes)
            self._policies[one if entry is None else entry.name] = entry
        for name in _ALWAYS:
            self._policies.setdefault(name)
        self.budget = next(iter(budgets_of(policies)), None)
        """Start and budget of the first policy that has them."""

    @property
    def reconstructions(self) -> list[str]:
        return list(self._reconstructors)

    @property
    def policies(self) -> list[str]:
        """Return the names; those of the command line come first."""
        return list(self._policies)

    @property
    def loaded(self) -> dict[str, Policy]:
        """Return the policies that were loaded without a size."""
        return {name: one.policy for name, one in self._policies.items() if one is not None}

    @property
    def fixed(self) -> str:
        """Fixed order for comparison: the first fitted one, or center-out."""
        orders = (name for name, one in self.loaded.items() if isinstance(one, FixedOrder))
        return next(orders, "center-out")

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns that the policies require; a default size if they support any."""
        bound = [one for one in self.loaded.values() if not one.serves_any_size]
        cols, rows = ([getattr(one, name, None) for one in bound] for name in ("n_cols", "n_rows"))
        n_cols = next((n for n in cols if isinstance(n, int)), _SIDE)
        n_rows = next((n for n in rows if isinstance(n, int)), n_cols)
        return n_rows, n_cols

    def network(self, name: str) -> Reconstructor:
        """Return a reconstruction with its training settings."""
        if name not in self._reconstructors:
            raise unknown_name("reconstruction", name, self.reconstructions)
        return self._reconstructors[name]

    def reconstructor(self, name: str, n_rows: int, n_cols: int) -> Reconstructor:
        """Return a reconstruction, frozen for images of a size."""
        network, key = self.network(name), (name, n_rows, n_cols)
        if key not in self._frozen:
            self._frozen[key] = network.frozen(
                precision="auto", n_rows=n_rows, n_cols=n_cols, device=self.device
            )
        return self._frozen[key]

    def entry(self, name: str, shape: Sequence[int], plan: Plan) -> EvaluationEntry:
        """Return a policy for images of a shape."""
        if name not in self._policies:
            raise unknown_name("policy", name, self.policies)
        entry = self._policies[name]
        return resolve(name, shape, plan)[0] if entry is None else entry
