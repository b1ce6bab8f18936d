"""Small files of Siemens raw data (twix, software VD; or VB, of one measurement)."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from coil_data import coil_kspace

N_ROWS, N_COLS, N_COILS = 16, 12, 3
KSPACE = coil_kspace(2, N_COILS, N_ROWS, N_COLS, noise=0.01).numpy()
PROTOCOL = f"""### ASCCONV BEGIN ###
sKSpace.lBaseResolution\t = \t{N_ROWS // 2}
sKSpace.lPhaseEncodingLines\t = \t{N_COLS}
sKSpace.ucTrajectory\t = \t1
sSliceArray.asSlice[0].dReadoutFOV\t = \t160.0
sSliceArray.asSlice[0].dPhaseFOV\t = \t120.0
tProtocolName\t = \t""gre""
### ASCCONV END ###
"""
END, FEEDBACK, SYNCHRONOUS, PHASE_CORRECTION, CALIBRATION, REVERSED, NOISE = (
    1 << bit for bit in (0, 1, 5, 21, 22, 24, 25)
)
COUNTERS = {"average": 1, "slice": 2, "partition": 3, "echo": 4, "repetition": 6}


def block(
    values: np.ndarray, flags: int = 0, *, line: int = 0, center: int | None = None, **counters: int
) -> bytes:
    """Build a block of coil x sample."""
    n_coils, n_samples = values.shape
    counts = [line, *[0] * 13]
    for name, value in counters.items():
        counts[COUNTERS[name]] = value
    center = n_samples // 2 if center is None else center
    head = struct.pack(
        "<I36xQHH14HHHH10xHH84x8x",
        *(192, flags, n_samples, n_coils, *counts, 0, 0, center, N_COLS // 2, 0),
    )
    assert len(head) == 192
    coils = (bytes(32) + coil.astype("<c8").tobytes() for coil in values)
    return head + b"".join(coils)


def older(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Rewrite blocks as software VB lays them out: a head of 128 bytes before every coil."""
    for block in blocks:
        flags, n_samples, n_coils = struct.unpack_from("<QHH", block, 40)
        is_special = bool(flags & (END | SYNCHRONOUS))
        length = struct.unpack_from("<I", block)[0] - 64 if is_special else 128 + 8 * n_samples
        head = struct.pack("<I16x", length) + block[40:148]
        if is_special:
            yield head + block[192:]
            continue
        coils = np.frombuffer(block, np.uint8, offset=192).reshape(n_coils, -1)[:, 32:]
        for number, coil in enumerate(coils):
            yield head[:124] + struct.pack("<HH", number, 0) + coil.tobytes()


def write_older(path: Path, blocks: Iterable[bytes], protocol: str = PROTOCOL) -> Path:
    """Write a file of software VB."""
    text = protocol.encode("latin-1").ljust(12000, b"\0")
    content = b"".join(older([*blocks, special(END)]))
    path.write_bytes(struct.pack("<II", 8 + len(text), 6) + text + content)
    return path


def special(flags: int, n_bytes: int = 64) -> bytes:
    """Build a block without lines: synchronous data, or the end."""
    return struct.pack("<I36xQ144x", 192 + n_bytes, flags) + bytes(n_bytes)


def blocks(kspace: np.ndarray = KSPACE, flags: int = 0, **counters: int) -> Iterator[bytes]:
    """Measure column after column, and slices in turn."""
    for column in range(kspace.shape[-1]):
        for number, image in enumerate(kspace):
            yield block(image[:, :, column], flags, line=column, slice=number, **counters)


def write(
    path: Path, *measurements: Iterable[bytes], protocol: str = PROTOCOL, first: int = 0
) -> Path:
    """Write a file of measurements; the last one makes the images."""
    contents: list[bytes] = []
    for rows in measurements:
        text = struct.pack("<II", 0, 4) + protocol.encode("latin-1")
        text = struct.pack("<I", len(text)) + text[4:]
        contents.append(text + b"".join(rows) + special(END))
    begins = _begins([len(content) for content in contents])
    head = struct.pack("<II", first, len(contents))
    for begin, content in zip(begins, contents, strict=True):
        head += struct.pack("<IIQQ128x", 1, 1, begin, len(content))
    whole = head.ljust(10240, b"\0")
    for begin, content in zip(begins, contents, strict=True):
        whole = whole.ljust(begin, b"\0") + content
    path.write_bytes(whole)
    return path


def _begins(lengths: Sequence[int]) -> list[int]:
    """Measurements begin at multiples of 512."""
    begins = [10240]
    for length in lengths[:-1]:
        begins.append(begins[-1] + -(-length // 512) * 512)
    return begins
