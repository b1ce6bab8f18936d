"""How volumes become slices of a store: what an import is asked for."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kscout.data.formats import LARGEST_SIDE
from kscout.data.importing.cutting import Size, sides
from kscout.errors import ConfigError
from kscout.names import Origin, PhaseEncoding, Plane, check_target


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
    divide: float | None = None
    """Number that all pixels, or all of k-space, are divided by; None leaves them as they are."""
    absolute: bool = False
    """Take absolute values of pixels, where images are not magnitudes."""
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
    phase_encoding: PhaseEncoding = "columns"
    """Which way is encoded by phase; rows of images, or of k-space, become columns of the store."""
    raw: bool = False
    """Import k-space, also where there are images of it."""
    crop: int | Size | None = None
    """Pixels that are kept in the middle of what k-space shows; None takes `size`."""
    resize: int | Size | None = None
    """Rows and columns of k-space that are kept about its center, or zero-padded."""
    axes: tuple[str, ...] | None = None
    """Names of the axes of arrays of k-space; None for those that their format knows."""
    origin: Origin = "center"
    """Where k-space and its image have their centers."""
    header: Path | None = None
    """File of the header, for ISMRMRD files without one."""
    target: str = "rss"
    """The rule of the targets of k-space, a name in `kscout.names.TARGETS`."""
    compress: int | None = None
    """Virtual coils that the coils of each slice are compressed to; None keeps all."""
    compress_center: int = 8
    """Central columns that virtual coils are found in, which acquisitions then start from."""
    prospective: bool = False
    """Take k-space of which only some columns were measured, to be reconstructed alone."""
    skip_bad: bool = False
    """Leave out what cannot be used and record it, instead of stopping."""

    def __post_init__(self) -> None:
        for name in ("size", "pad", "crop", "resize"):
            size = getattr(self, name)
            if size is not None and not all(1 <= side <= LARGEST_SIDE for side in sides(size)):
                raise ConfigError(
                    f"--{name} {told(size)} is no image size; give 1 to {LARGEST_SIDE}"
                )
        if self.pad is not None and self.size is not None:
            less = zip(sides(self.pad), sides(self.size), strict=True)
            if any(pad < size for pad, size in less):
                raise ConfigError(
                    f"--pad {told(self.pad)} is less than --size {told(self.size)}; raise --pad"
                )
        if self.resample and not all(0.01 <= step <= 100 for step in self.resample):
            raise ConfigError(
                f"--resample {'x'.join(map(str, self.resample))} is no spacing; give 0.01 to 100 mm"
            )
        if self.divide is not None and not 0 < self.divide < math.inf:
            raise ConfigError(f"--divide is {self.divide}; give a number above 0")
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"--sample-rate is {self.sample_rate}; give a share above 0, up to 1")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"--held-out is {self.held_out}; give a share from 0 to below 1")
        if self.splits is not None and self.test_from_train:
            raise ConfigError("--splits names the test volumes; drop it or --test-from-train")
        self._check_kind()

    @property
    def virtual(self) -> tuple[int, int] | None:
        """Virtual coils, and the central columns that they are found in; None keeps all coils."""
        return None if self.compress is None else (self.compress, self.compress_center)

    @property
    def names_kspace(self) -> list[str]:
        """Settings that only k-space has, as far as they are given."""
        names = ("raw", "crop", "resize", "axes", "header", "compress", "prospective")
        found = [name for name in names if getattr(self, name) not in (None, False)]
        found += ["target"] if self.target != "rss" else []
        return found + (["origin"] if self.origin != "center" else [])

    def _check_kind(self) -> None:
        check_target(self.target)
        of_images = [name for name in ("pad", "resample") if getattr(self, name) is not None]
        if self.names_kspace and of_images:
            raise ConfigError(
                f"--{of_images[0]} is of images, and --{self.names_kspace[0]} of k-space, which "
                "--crop and --resize cut; drop one of them"
            )
        if self.prospective and self.phase_encoding == "rows":
            raise ConfigError(
                "--prospective keeps the columns that were measured, and --phase-encoding rows "
                "makes columns of a readout; drop one of them"
            )
        for name, count in (("compress", self.compress), ("compress-center", self.compress_center)):
            if count is not None and count < 1:
                raise ConfigError(f"--{name} is {count}; it must be 1 or more")
        if self.crop is not None and self.size is not None:
            raise ConfigError("--size and --crop say the same of k-space; drop one of them")

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
    def parse_axes(cls, text: str) -> tuple[str, ...]:
        """Read the names of axes from `slice,coil,row,col` in the order of the file."""
        axes = tuple(part.strip() for part in text.split(","))
        known = {**dict.fromkeys(("row", "col"), 1), "coil": 1, "slice": 9, "average": 9, "-": 9}
        if bad := [axis for axis in axes if axes.count(axis) > known.get(axis, 0)]:
            raise ConfigError(
                f"--axes {text!r} names {bad[0]!r} {'twice' if bad[0] in known else ''}".rstrip()
                + "; name row, col and coil once, slice and average as often as they come, and - "
                "for an axis of length 1"
            )
        if not {"row", "col"} <= set(axes):
            raise ConfigError(f"--axes {text!r} lacks row or col; write e.g. slice,coil,row,col")
        return axes

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


def told(size: int | Size) -> str:
    """Return a size as an option takes it."""
    rows, cols = sides(size)
    return str(rows) if rows == cols else f"{rows}x{cols}"
