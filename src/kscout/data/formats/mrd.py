"""MRD (ISMRMRD) files: a header in XML, and lines with their counters and flags, in HDF5."""

from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from jaxtyping import Bool, Int, Shaped

from kscout.data.formats.hdf5 import check_chunks, check_heap, find_dataset
from kscout.data.formats.ismrmrd_header import Encoding, Header, read_header
from kscout.data.formats.raw import RawScan, check_declared
from kscout.data.formats.readouts import Readouts, check_trajectory, sort_out, whiten
from kscout.errors import DataError

_NOISE, _CALIBRATION, _CALIBRATION_TOO, _REVERSED = (1 << (bit - 1) for bit in (19, 20, 21, 22))
_PHASE_CORRECTION = 1 << 23
_LEFT_OUT = {
    "phase-correction": _PHASE_CORRECTION,
    "navigator": 1 << 22,
    "feedback": (1 << 25) | (1 << 27),
    "dummy": 1 << 26,
    "surface-coil correction": 1 << 28,
    "phase-stabilization": (1 << 29) | (1 << 30),
    "calibration": _CALIBRATION,
}
COUNTERS = ("contrast", "phase", "repetition", "set", "slice")
"""Counters that distinguish slices, the last fastest."""
_AT_ONCE = 1024
"""Largest number of lines in one read."""


def find_measurement(file: h5py.File, key: str | None = None) -> str | None:
    """Return the group of a file that contains lines and counters; None if there is none."""
    for name in (key,) if key else sorted(file, key=lambda name: name != "dataset"):
        link = file.get(name, getlink=True)
        group = file[name] if isinstance(link, h5py.HardLink) else None
        if not isinstance(group, h5py.Group):
            continue
        inner = group.get("data", getlink=True)
        data = group["data"] if isinstance(inner, h5py.HardLink) else None
        if isinstance(data, h5py.Dataset) and set(data.dtype.names or ()) >= {"head", "data"}:
            return name
    return None


class MrdRecording(NamedTuple):
    """A measurement of Cartesian lines, in a file."""

    path: Path
    group: str
    xml: bytes
    """The header as stored in the file."""
    header: Header
    encoding: Encoding
    heads: Shaped[np.ndarray, " line"]
    numbers: Int[np.ndarray, " image_line"]
    """Indices of lines for images."""
    noise: Int[np.ndarray, " noise_line"]
    """Indices of noise lines."""
    notes: tuple[str, ...]
    """Notes on lines that were left out."""

    @classmethod
    def open(cls, path: Path, group: str, header: Path | None = None) -> "MrdRecording":
        """Read header and counters, and select lines; `header` is a file of XML or HDF5."""
        with h5py.File(path, "r") as file:
            xml = _header_text(file, path, group, header)
            described = read_header(xml)
            data = find_dataset(file, path, f"{group}/data")
            if data is None or data.ndim != 1:
                raise DataError(f"{path} has no list of lines in {group}; copy it again")
            check_declared(path, data.shape, data.dtype)
            check_chunks(data, path)
            heads = data.fields("head")[()]
        is_noise, is_image, note = sort_lines(heads)
        encoding, numbers, others = _choose_encoding(
            path, described, heads, np.flatnonzero(is_image)
        )
        notes = tuple(text for text in (note, others) if text)
        noise = np.flatnonzero(is_noise)
        return cls(path, group, xml, described, encoding, heads, numbers, noise, notes)

    @property
    def size(self) -> tuple[int, int, int]:
        """Coils, rows and columns."""
        assert self.encoding.encoded is not None
        return int(self.heads["active_channels"][self.numbers[0]]), *self.encoding.encoded.matrix

    @property
    def columns(self) -> tuple[int, int] | None:
        """First and one past the last column; None if the header has no valid limits."""
        if self.encoding.lines is None:
            return None
        n_cols = self.size[2]
        shift = n_cols // 2 - _middle(self.encoding, n_cols)
        first, last = (line + shift for line in self.encoding.lines)
        return (first, last + 1) if 0 <= first <= last < n_cols else None

    def readouts(self) -> Readouts:
        return readouts_of(self.heads, self.numbers, self.encoding, self.size[2])

    def lines(self, numbers: Int[np.ndarray, " some"], *, whole: bool = False) -> list[np.ndarray]:
        """Read lines, coil x sample, by ascending indices; neighbors are read together.

        `whole` includes the samples that their heads discard.
        """
        found: list[np.ndarray] = []
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        with h5py.File(self.path, "r") as file:
            data = file[self.group]["data"]
            for run in np.split(numbers, breaks):
                for part in np.split(run, range(_AT_ONCE, len(run), _AT_ONCE)):
                    rows = data[int(part[0]) : int(part[-1]) + 1]
                    found += [_values(row) if whole else _kept(row) for row in rows]
        return found


def read_mrd(path: Path, group: str, header: Path | None = None) -> RawScan:
    """Return the Cartesian k-space of a measurement."""
    found = MrdRecording.open(path, group, header)
    notes, whitening = found.notes, None
    if len(found.noise):
        whitening = whiten(path, found.lines(found.noise), found.size[0])
        notes += (f"coils made white by {len(found.noise)} lines of noise",)
    assert found.encoding.encoded is not None
    scan = found.readouts().scan(path, found.lines, size=found.size, whitening=whitening)
    return scan._replace(
        acquisition=found.header.protocol,
        spacing_mm=found.encoding.encoded.spacing_mm,
        n_readout=found.encoding.n_readout,
        encoded=found.columns,
        notes=notes,
    )


def sort_lines(
    heads: Shaped[np.ndarray, " line"],
) -> tuple[Bool[np.ndarray, " line"], Bool[np.ndarray, " line"], str]:
    """Return the indices of noise lines and of image lines, and a sentence on the others."""
    flags = heads["flags"].astype(np.uint64)
    is_noise = (flags & np.uint64(_NOISE)) != 0
    serves_both = (flags & np.uint64(_CALIBRATION_TOO)) != 0
    flags[serves_both] &= ~np.uint64(_CALIBRATION)
    is_image = ~is_noise
    is_image[~is_noise], note = sort_out(flags[~is_noise], _LEFT_OUT)
    return is_noise, is_image, note


def _header_text(file: h5py.File, path: Path, group: str, header: Path | None) -> bytes:
    if header is None and (found := find_dataset(file, path, f"{group}/xml")) is not None:
        return _xml(found, path)
    place = header or path.with_suffix(".xml")
    if not place.is_file():
        raise DataError(f"{path} has no header, and {place} is not there; name it with --header")
    if not h5py.is_hdf5(place):
        return place.read_bytes()
    with h5py.File(place, "r") as other:
        for name in other:
            if (found := find_dataset(other, place, f"{name}/xml")) is not None:
                return _xml(found, place)
    raise DataError(f"{place} has no header; name another file with --header")


def _xml(data: h5py.Dataset, path: Path) -> bytes:
    check_heap(data, path)
    value = np.ravel(data[()])[0]
    return value if isinstance(value, bytes) else str(value).encode()


def _choose_encoding(
    path: Path, header: Header, heads: np.ndarray, numbers: np.ndarray
) -> tuple[Encoding, np.ndarray, str]:
    """Return the first encoding with lines, those lines, and a sentence on the others."""
    if not len(numbers):
        raise DataError(f"{path} has no line that makes an image; copy it again")
    space = heads["encoding_space_ref"][numbers]
    chosen = int(space.min())
    if chosen >= len(header.encodings):
        raise DataError(
            f"{path} has lines of encoding {chosen}, and its header has {len(header.encodings)} "
            "encodings; give the matching header with --header"
        )
    encoding = header.encodings[chosen]
    check_encoding(path, encoding)
    mine = numbers[space == chosen]
    is_deep = bool(heads["idx"]["kspace_encode_step_2"][mine].any())
    is_epi = _flagged(heads, _PHASE_CORRECTION).any() and _flagged(heads[mine], _REVERSED).any()
    check_trajectory(path, "epi" if is_epi else encoding.trajectory, is_deep=is_deep)
    n_others = len(numbers) - len(mine)
    return encoding, mine, f"left out {n_others} lines of other encodings" if n_others else ""


def check_encoding(path: Path, encoding: Encoding) -> None:
    """Raise an error for an encoding that is not two-dimensional Cartesian."""
    check_trajectory(path, encoding.trajectory, is_deep=encoding.n_depth > 1)
    if encoding.encoded is None:
        raise DataError(f"{path} has a header without an encoded space; complete it")


def readouts_of(
    heads: np.ndarray, numbers: np.ndarray, encoding: Encoding, n_cols: int
) -> Readouts:
    """Return the positions of the lines with the given indices, in a matrix of `n_cols` columns."""
    mine = heads[numbers]
    before, after, samples, center = (
        mine[name].astype(np.int64)
        for name in ("discard_pre", "discard_post", "number_of_samples", "center_sample")
    )
    # Some converters leave the center unset.
    center = np.where(center == 0, samples // 2, center)
    reverses = _flagged(mine, _REVERSED)
    n_samples = samples - before - after
    return Readouts(
        number=numbers,
        place=np.stack([mine["idx"][name] for name in COUNTERS], axis=1).astype(np.int64),
        column=mine["idx"]["kspace_encode_step_1"].astype(np.int64)
        - _middle(encoding, n_cols)
        + n_cols // 2,
        n_samples=n_samples,
        # The center of a reversed line; complete lines keep their position.
        center=np.where(reverses, n_samples - center + before, center - before),
        is_reversed=reverses,
    )


def _middle(encoding: Encoding, n_cols: int) -> int:
    return n_cols // 2 if encoding.center is None else encoding.center


def _flagged(heads: np.ndarray, bit: int) -> Bool[np.ndarray, " line"]:
    return (heads["flags"].astype(np.uint64) & np.uint64(bit)) != 0


def _values(row: np.void) -> np.ndarray:
    head = row["head"]
    values = np.asarray(row["data"], dtype="<f4").view(np.complex64)
    return values.reshape(int(head["active_channels"]), int(head["number_of_samples"]))


def _kept(row: np.void) -> np.ndarray:
    values, head = _values(row), row["head"]
    end = values.shape[1] - int(head["discard_post"])
    return values[:, int(head["discard_pre"]) : end]
