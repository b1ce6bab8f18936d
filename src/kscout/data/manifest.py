"""The table of contents of a store, `manifest.json`, read without torch."""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, final

from kscout.config import read, read_file, to_table
from kscout.config.bounds import AtLeast
from kscout.errors import ConfigError, DataError
from kscout.files import write_json
from kscout.json_types import JsonObject

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "val", "test")

Count = Annotated[int, AtLeast(0)]


@final
@dataclass(frozen=True)
class Geometry:
    """Positions and spacing of the pixels of an imported volume, in its file and in the store."""

    size: tuple[Count, Count]
    """Rows and columns in the file."""
    spacing_mm: tuple[float, float] | None = None
    """Distance of neighboring rows, and of columns, in the file; None if unspecified."""
    stored_mm: tuple[float, float] | None = None
    """Distance of neighboring rows, and of columns, in the store."""
    kept: tuple[Count, Count] | None = None
    """K-space only: rows and columns of its image that were retained before k-space was cropped or
    zero-padded to the size in the store."""
    notes: tuple[str, ...] | None = None
    """Corrections and omissions of measured lines."""
    of_images: bool | None = None
    """Whether k-space is the transform of complex images."""
    is_turned: bool | None = None
    """Whether columns of the store were rows of the file (versions before 0.4)."""
    is_compressed: bool | None = None
    """Whether coils were compressed; None if compression was not requested."""
    slice_mm: float | None = None
    """Distance of neighboring slices of the file; None if unspecified or not constant."""

    @property
    def is_computed(self) -> bool:
        """Whether columns were computed (transposed, cropped, or made of images), not measured."""
        is_cut = self.kept is not None and self.kept[1] != self.size[1]
        return is_cut or bool(self.of_images or self.is_turned)


@final
@dataclass(frozen=True)
class VolumeRecord:
    """Record of the slices of one volume, which are contiguous in one array."""

    split: str
    volume: str
    size: tuple[Count, Count]
    """Rows and columns."""
    slices: tuple[int, ...]
    """Numbers of the stored slices in the source."""
    data_range: float
    source: str
    """The source file or generator."""
    acquisition: str
    selectable: tuple[Count, Count]
    """First and one past the last column inside the measured matrix."""
    geometry: Geometry | None = None
    """Geometry of an imported volume; not part of the fingerprint, as it changes no pixel."""
    measured: tuple[Count, ...] | None = None
    """Measured columns of an undersampled volume; None if all were measured."""
    masks: tuple[tuple[Count, ...], ...] | None = None
    """Measured columns of each slice, if slices differ."""

    def __post_init__(self) -> None:
        first, end = self.selectable
        if not self.slices or not 0 < self.data_range < math.inf or not first < end <= self.size[1]:
            raise ConfigError(
                f"volume {self.volume!r} has {len(self.slices)} slices of {self.size[1]} columns, "
                f"data_range {self.data_range:g} and selectable columns {first} to {end}, which "
                "cannot be"
            )
        if self.masks is not None and len(self.masks) != len(self.slices):
            raise ConfigError(
                f"volume {self.volume!r} has {len(self.slices)} slices and {len(self.masks)} masks"
            )


@final
@dataclass(frozen=True)
class ArrayRecord:
    """One array file: the slices of one split and matrix size."""

    file: str
    split: str
    shape: tuple[Count, ...]
    axes: tuple[str, ...]
    dtype: str
    sha256: str
    sample_sha256: str | None = None
    """Checksum of sampled blocks of a file that is too large to be read completely at every use."""

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file or self.file == "..":
            raise ConfigError(f"file {self.file!r} does not lie in the folder of the store")
        if len(self.shape) != len(self.axes) or len(self.shape) < 3 or not all(self.shape):
            raise ConfigError(f"{self.file} has shape {self.shape} and axes {self.axes}")

    @property
    def size(self) -> tuple[int, int]:
        return self.shape[-2], self.shape[-1]


@final
@dataclass(frozen=True)
class Manifest:
    """The table of contents of a store."""

    name: str
    recipe: JsonObject
    """The command and arguments that made the store."""
    volumes: tuple[VolumeRecord, ...]
    arrays: tuple[ArrayRecord, ...]
    left_out: tuple[dict[str, str], ...] = ()
    """Sources that could not be imported, each with `source` and `reason`."""
    warnings: tuple[str, ...] = ()
    kind: str = "image"
    """Kind of all arrays, as named in `kscout.data.kinds`."""
    target: str | None = None
    """Target rule, if the kind has several rules and this is not the first."""
    virtual: tuple[Count, Count] | None = None
    """Compressed coils: largest number of virtual coils, and central columns that define them."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        counts: dict[tuple[str, tuple[int, int]], int] = {}
        for record in self.volumes:
            place = (record.split, record.size)
            counts[place] = counts.get(place, 0) + len(record.slices)
        held = {(array.split, array.size): array.shape[0] for array in self.arrays}
        if held != counts or len(held) < len(self.arrays):
            raise ConfigError("its volumes and its arrays list different slices")
        if len({(record.split, record.volume) for record in self.volumes}) < len(self.volumes):
            raise ConfigError("a volume occurs twice in one split")

    @property
    def splits(self) -> dict[str, int]:
        """Number of slices by split."""
        counts: dict[str, int] = {}
        for record in self.volumes:
            counts[record.split] = counts.get(record.split, 0) + len(record.slices)
        return counts

    @property
    def n_basis(self) -> int:
        """Central columns that define the virtual coils; 0 if coils are not compressed."""
        return self.virtual[1] if self.virtual else 0

    @property
    def is_prospective(self) -> bool:
        """Whether columns are missing, so that the store can neither be trained on nor scored."""
        return any(record.measured is not None for record in self.volumes)

    @property
    def columns(self) -> str:
        """Origin of k-space columns: `measured`, `simulated` or `computed`."""
        if self.kind == "image" or any(r.geometry and r.geometry.is_computed for r in self.volumes):
            return "computed"
        return "measured" if any(r.geometry for r in self.volumes) else "simulated"

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal for copies, whatever their name or folder."""
        arrays = [[array.file, array.sha256] for array in self.arrays]
        volumes = [to_table(replace(volume, geometry=None)) for volume in self.volumes]
        rule = [self.target] if self.target else []
        text = json.dumps([self.kind, arrays, volumes, *rule], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest into the folder of a store."""
    table = to_table(manifest)
    head = {key: table.pop(key) for key in ("schema_version", "kind", "name")}
    write_json(folder / MANIFEST, {**head, "splits": manifest.splits, **table})


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a store."""
    file = folder / MANIFEST
    table = read_file(file, what="the manifest", error=DataError)
    version = table.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{folder} has schema version {version}, this kscout reads {SCHEMA_VERSION}; "
            "make the store again, or use the kscout that made it"
        )
    table.pop("splits", None)
    try:
        return read(Manifest, table)
    except ConfigError as error:
        raise DataError(
            f"{file} is not a manifest of a store ({error}); make the store again"
        ) from error
