"""Settings of an import: how volumes become slices of a store."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, final

from kscout.config.bounds import (
    LARGEST_SIDE,
    Above,
    AtLeast,
    Between,
    Form,
    Size,
    parse_size,
    sides,
)
from kscout.config.records import check
from kscout.errors import ConfigError
from kscout.names import Origin, PhaseEncoding, Plane, Target

_SIZE = Form("PIXELS|ROWSxCOLS", parse_size)


def parse_axes(text: str, option: str) -> tuple[str, ...]:
    """Parse names of axes, such as `slice,coil,row,col`, in the order of the file."""
    axes = tuple(part.strip() for part in text.split(","))
    known = {**dict.fromkeys(("row", "col"), 1), "coil": 1, "slice": 9, "average": 9, "-": 9}
    if bad := [axis for axis in axes if axes.count(axis) > known.get(axis, 0)]:
        raise ConfigError(
            f"{option} {text!r} names {bad[0]!r} {'twice' if bad[0] in known else ''}".rstrip()
            + "; name row, col and coil once, slice and average any number of times, and - "
            "for an axis of length 1"
        )
    if not {"row", "col"} <= set(axes):
        raise ConfigError(f"{option} {text!r} lacks row or col; write e.g. slice,coil,row,col")
    return axes


def parse_spacing(text: str, option: str) -> tuple[float, float]:
    """Parse a spacing in mm from one number, or from `ROWxCOL`."""
    try:
        steps = [float(part) for part in text.split("x")]
        rows, cols = steps * 2 if len(steps) == 1 else steps
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is no spacing; write mm as in 1.5, or rows x columns as in 1.5x1.2"
        ) from error
    return rows, cols


@final
@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """How volumes become slices of a store."""

    size: Annotated[int | Size | None, _SIZE] = None
    """Pixels to retain in the middle. (default: all)"""
    pad: Annotated[int | Size | None, _SIZE] = None
    """Zero-pad smaller images to this first; paper: 384 for brains."""
    resample: Annotated[tuple[float, float] | None, Form("MM|ROWxCOL", parse_spacing)] = None
    """Resample pixels to this spacing (mm) first."""
    divide: Annotated[float | None, Above(0)] = None
    """Divide all pixels by this number, e.g. to scale them to 0..1."""
    absolute: bool = False
    """Use absolute values of pixels."""
    center_volume: Annotated[bool, Form(flags="--center-volume/--whole-volume")] = False
    """Keep the middle half of the slices, or all."""
    sample_rate: Annotated[float, Above(0), Between(0, 1)] = 1.0
    """Fraction of each split's volumes to import."""
    acquisition: str | None = None
    """Import only this acquisition, e.g. CORPD_FBK."""
    splits: Path | None = None
    """Folder of train.txt, val.txt, test.txt with volume names."""
    group: Annotated[str | None, Form("REGEX")] = None
    """Images: the part of a file's path that names its volume; its files are joined."""
    held_out: float = 0.2
    """Fraction of volumes for test, then for val, if no split is given."""
    seed: int = 0
    """Seed of the random split."""
    test_from_train: bool = False
    """Sample test volumes from train, even if there is a test folder."""
    key: str | None = None
    """Name of images or k-space in a file; known for fastMRI."""
    plane: Plane = "axial"
    """NIfTI: plane of the slices."""
    phase_encoding: PhaseEncoding = "columns"
    """Images: phase-encoding axis of the file; rows become the columns of the store."""
    raw: bool = False
    """Import k-space, even if the files also contain images."""
    crop: Annotated[int | Size | None, _SIZE] = None
    """k-space: pixels of its image to retain. (default: --size)"""
    resize: Annotated[int | Size | None, _SIZE] = None
    """k-space: rows, columns to crop or zero-pad to, around its center."""
    axes: Annotated[tuple[str, ...] | None, Form("NAME,...", parse_axes)] = None
    """Names of the axes of arrays, e.g. row,col,slice, or slice,coil,row,col for k-space."""
    origin: Origin = "center"
    """k-space: position of the center in the array."""
    header: Path | None = None
    """k-space: header for ISMRMRD files without one."""
    target: Target = "rss"
    """k-space: rule for targets."""
    compress: Annotated[int | None, AtLeast(1)] = None
    """k-space: number of virtual coils, e.g. 8. (default: all coils)"""
    compress_center: Annotated[int, AtLeast(1)] = 8
    """k-space: central columns that define virtual coils; acquisitions start from them."""
    prospective: bool = False
    """k-space: also import undersampled files, for reconstruction only."""
    skip_bad: bool = False
    """Omit unusable sources, and record them."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("size", "pad", "crop", "resize"):
            size = getattr(self, name)
            if size is not None and not all(1 <= side <= LARGEST_SIDE for side in sides(size)):
                raise ConfigError(
                    f"--{name} {size_text(size)} is no image size; give 1 to {LARGEST_SIDE}"
                )
        if self.pad is not None and self.size is not None:
            less = zip(sides(self.pad), sides(self.size), strict=True)
            if any(pad < size for pad, size in less):
                raise ConfigError(
                    f"--pad {size_text(self.pad)} is less than --size {size_text(self.size)}; "
                    "raise --pad"
                )
        if self.resample and not all(0.01 <= step <= 100 for step in self.resample):
            raise ConfigError(
                f"--resample {'x'.join(map(str, self.resample))} is no spacing; give 0.01 to 100 mm"
            )
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"--held-out is {self.held_out}; give one from 0 to below 1")
        if self.splits is not None and self.test_from_train:
            raise ConfigError("--splits names the test volumes; remove it or --test-from-train")
        self._check_kind()

    @property
    def names_kspace(self) -> list[str]:
        """Names of the given settings that only apply to k-space."""
        names = "raw crop resize origin header target compress prospective".split()
        return [
            x.name for x in fields(self) if x.name in names and getattr(self, x.name) != x.default
        ]

    def _check_kind(self) -> None:
        try:
            re.compile(self.group or "")
        except re.error as error:
            raise ConfigError(
                f"--group {self.group!r} is no regular expression ({error}); write one as in (.+)_"
            ) from error
        of_images = [
            name for name in ("pad", "resample", "group") if getattr(self, name) is not None
        ]
        of_images += ["phase-encoding"] * (self.phase_encoding == "rows")
        if self.names_kspace and of_images:
            raise ConfigError(
                f"--{of_images[0]} applies to images, and --{self.names_kspace[0]} to k-space "
                "(which --crop and --resize crop); remove one of them"
            )
        if self.crop is not None and self.size is not None:
            raise ConfigError("--size and --crop are the same for k-space; remove one of them")


def size_text(size: int | Size) -> str:
    """Return a size in the format of an option."""
    rows, cols = sides(size)
    return str(rows) if rows == cols else f"{rows}x{cols}"
