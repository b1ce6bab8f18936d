"""Siemens raw data (twix, `.dat`): lines with their counters and flags.

A measurement is a text (the protocol) followed by blocks of lines. A file of software VD and later
contains several measurements: the last one has the images, those before it are adjustments and
noise. Each block is a head of 192 bytes, then for every coil a head of 32 bytes and its samples. A
file of software VB or VA is one measurement, whose blocks have a head of 128 bytes for every coil;
these differ only in the coil's number.
"""

import re
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from kscout.data.formats.raw import RawScan
from kscout.data.formats.readouts import Readouts, check_trajectory, sort_out, whiten
from kscout.errors import DataError

_COUNTERS = ("line", "average", "slice", "partition", "echo", "phase", "repetition", "set")
_PLACES = ("before", "after", "center", "center_line")
"""Counts of discarded samples at both ends, and the centers of k-space."""


@final
class _Layout(NamedTuple):
    head: np.dtype[np.void]
    own_bytes: int
    """Size of the common head of all coils; 0 if the head of the first coil is used."""
    coil_bytes: int
    """Size of the head of each coil."""


def _head(first: int, itemsize: int) -> np.dtype[np.void]:
    """Return a head whose counters and flags start at a byte."""
    counters = range(first + 12, first + 12 + 2 * len(_COUNTERS), 2)
    places = [first + offset for offset in (40, 42, 44, 56)]
    return np.dtype(
        {
            "names": ["length", "flags", "n_samples", "n_coils", *_COUNTERS, *_PLACES],
            "formats": ["<u4", "<u8", "<u2", "<u2", *["<u2"] * len(_COUNTERS), *["<u2"] * 4],
            "offsets": [0, first, first + 8, first + 10, *counters, *places],
            "itemsize": itemsize,
        }
    )


_NEW = _Layout(_head(40, 192), own_bytes=192, coil_bytes=32)
_OLD = _Layout(_head(20, 128), own_bytes=0, coil_bytes=128)
_MOST_MEASUREMENTS, _ENTRY_BYTES = 64, 152
_LARGEST_PROTOCOL = 2**26

_END, _SYNCHRONOUS = 1 << 0, 1 << 5
_PHASE_CORRECTION, _CALIBRATION, _CALIBRATION_TOO = 1 << 21, 1 << 22, 1 << 23
_REVERSED, _NOISE = 1 << 24, 1 << 25
_LEFT_OUT = {
    "noise": _NOISE,
    "phase-correction": _PHASE_CORRECTION,
    "feedback": (1 << 1) | (1 << 2),
    "phase-stabilization": (1 << 14) | (1 << 15),
    "calibration": _CALIBRATION,
}


@final
class _Measurement(NamedTuple):
    protocol: str
    heads: np.ndarray
    """Heads of all blocks with lines."""
    places: np.ndarray
    """Offsets of these blocks in the file."""
    layout: _Layout

    def value(self, name: str) -> float | None:
        """Return a number of the protocol; None if missing."""
        # Older software writes some numbers as hexadecimal digits.
        number = r"\s*=\s*(?:0x([\da-fA-F]+)|(-?[\d.]+(?:[eE][-+]?\d+)?))"
        found = re.search(rf"^{re.escape(name)}{number}", self.protocol, re.M)
        if found is None:
            return None
        return float(int(found[1], 16)) if found[1] else float(found[2])


def read_twix(path: Path) -> RawScan:
    """Return the Cartesian k-space of the last measurement of a file."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    layout, offsets = _offsets(path, content)
    measurements = [_measurement(path, content, begin, layout) for begin in offsets]
    last = measurements[-1]
    flags = last.heads["flags"].copy()
    flags[(flags & np.uint64(_CALIBRATION_TOO)) != 0] &= ~np.uint64(_CALIBRATION)
    is_image, note = sort_out(flags, _LEFT_OUT)
    numbers = np.flatnonzero(is_image)
    _check_lines(path, last, numbers)
    heads = last.heads[numbers]
    readouts, size = _readouts(heads, numbers, last)
    n_coils = int(heads["n_coils"][0])
    noise = [line for one in measurements for line in _noise(content, one, n_coils)]
    del content
    notes = [note] if note else []
    if noise:
        notes.append(f"coils made white by {len(noise)} lines of noise")
    base = last.value("sKSpace.lBaseResolution")
    name = re.search(r'^tProtocolName\s*=\s*"*([^"\n]*)', last.protocol, re.M)
    scan = readouts.scan(
        path,
        lambda chosen: _lines(np.memmap(path, dtype=np.uint8, mode="r"), last, chosen),
        size=(n_coils, *size),
        whitening=whiten(path, noise, n_coils) if noise else None,
    )
    return scan._replace(
        acquisition=name[1] if name else "",
        spacing_mm=_spacing(last, size, base),
        n_readout=int(base) if base and 0 < base < size[0] else None,
        notes=tuple(notes),
    )


def _offsets(path: Path, content: np.ndarray) -> tuple[_Layout, list[int]]:
    """Return the layout of a file and the offsets of its measurements."""
    if len(content) < 10240:
        raise DataError(f"{path} has {len(content)} bytes, too few for raw data; copy it again")
    first, count = (int(number) for number in content[:8].view("<u4"))
    if first < 10000 and 1 <= count <= _MOST_MEASUREMENTS:
        places = range(16, 16 + count * _ENTRY_BYTES, _ENTRY_BYTES)
        return _NEW, [int(content[place : place + 8].view("<u8")[0]) for place in places]
    is_old = 10000 <= first <= min(len(content), _LARGEST_PROTOCOL)
    if not is_old or b"ASCCONV" not in content[:first].tobytes():
        raise DataError(
            f"{path} is not raw data of Siemens, because it starts with {first} and {count}; "
            "convert it to MRD first"
        )
    return _OLD, [0]


def _measurement(path: Path, content: np.ndarray, begin: int, layout: _Layout) -> _Measurement:
    damaged = DataError(f"{path} ends within a measurement, or is damaged; copy it again")
    if begin + 4 > len(content):
        raise damaged
    length = int.from_bytes(content[begin : begin + 4].tobytes(), "little")
    if length > _LARGEST_PROTOCOL or begin + length > len(content):
        raise damaged
    text = content[begin : begin + length].tobytes().decode("latin-1")
    places, place = [], begin + length
    while place + layout.head.itemsize <= len(content):
        (head,) = np.frombuffer(content, layout.head, 1, place)
        flags, n_bytes = int(head["flags"]), _block_bytes(head, layout)
        if flags & _END:
            break
        if n_bytes < layout.head.itemsize or place + n_bytes > len(content):
            raise damaged
        if not flags & _SYNCHRONOUS and head["n_samples"]:
            places.append(place)
        place += n_bytes
    else:
        # Only this block marks the end of the lines of a measurement.
        raise damaged
    heads = [np.frombuffer(content, layout.head, 1, one)[0] for one in places]
    found = np.array(heads, dtype=layout.head)
    return _Measurement(text, found, np.array(places, dtype=np.int64), layout)


def _block_bytes(head: np.void, layout: _Layout) -> int:
    if int(head["flags"]) & (_END | _SYNCHRONOUS):
        return int(head["length"]) & 0x1FFFFFF
    per_coil = layout.coil_bytes + 8 * int(head["n_samples"])
    return layout.own_bytes + int(head["n_coils"]) * per_coil


def _check_lines(path: Path, last: _Measurement, numbers: np.ndarray) -> None:
    if not len(numbers):
        raise DataError(f"{path} has no line for an image; copy it again")
    flags, trajectory = np.bitwise_or.reduce(last.heads["flags"]), "cartesian"
    if flags & np.uint64(_PHASE_CORRECTION) and flags & np.uint64(_REVERSED):
        trajectory = "epi"
    elif (last.value("sKSpace.ucTrajectory") or 1) > 1:
        trajectory = "not Cartesian"
    check_trajectory(path, trajectory, is_deep=bool(last.heads["partition"][numbers].any()))


def _readouts(
    heads: np.ndarray, numbers: np.ndarray, last: _Measurement
) -> tuple[Readouts, tuple[int, int]]:
    """Return the lines for images, and the rows and columns of their matrix."""
    fields = ("before", "after", "n_samples", "center", "line", "center_line")
    before, after, samples, center, line, middle = (heads[name].astype(np.int64) for name in fields)
    reverses = (heads["flags"] & np.uint64(_REVERSED)) != 0
    n_samples = samples - before - after
    center = np.where(reverses, n_samples - center + before, center - before)
    n_rows = int(2 * np.maximum(center, n_samples - center).max())
    n_lines = int(2 * np.maximum(middle, line - middle + 1).max())
    declared = last.value("sKSpace.lPhaseEncodingLines")
    # The encoded matrix may have odd length, or more columns than were measured.
    n_cols = int(declared) if declared and n_lines - 1 <= declared <= 2 * n_lines else n_lines
    counters = ("echo", "phase", "repetition", "set", "slice")
    place = np.stack([heads[name] for name in counters], axis=1).astype(np.int64)
    column = line - middle + n_cols // 2
    return Readouts(numbers, place, column, n_samples, center, reverses), (n_rows, n_cols)


def _spacing(
    last: _Measurement, size: tuple[int, int], base: float | None
) -> tuple[float, float] | None:
    rows = last.value("sSliceArray.asSlice[0].dReadoutFOV")
    cols = last.value("sSliceArray.asSlice[0].dPhaseFOV")
    if not rows or not cols or not base:
        return None
    more = 1 + (last.value("sKSpace.dPhaseOversamplingForDialog") or 0)
    return rows / base, cols * more / size[1]


def _noise(content: np.ndarray, one: _Measurement, n_coils: int) -> list[np.ndarray]:
    """Return the noise lines of a measurement with the same coils."""
    is_noise = (one.heads["flags"] & np.uint64(_NOISE)) != 0
    is_noise &= one.heads["n_coils"] == n_coils
    return _lines(content, one, np.flatnonzero(is_noise))


def _lines(content: np.ndarray, one: _Measurement, numbers: np.ndarray) -> list[np.ndarray]:
    """Return lines, coil x sample, without the samples that their heads discard."""
    lines = []
    for head, begin in zip(one.heads[numbers], one.places[numbers].tolist(), strict=True):
        place, n_coils = begin + one.layout.own_bytes, int(head["n_coils"])
        n_samples = int(head["n_samples"])
        block = content[place : place + n_coils * (one.layout.coil_bytes + 8 * n_samples)]
        samples = block.reshape(n_coils, -1)[:, one.layout.coil_bytes :].copy().view("<c8")
        lines.append(samples[:, int(head["before"]) : n_samples - int(head["after"])])
    return lines
