"""One valid file of every format of k-space that kscout imports, and damage that each may have."""

import io
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import scipy.io

import mrd_files
import twix_files
from coil_data import coil_kspace
from fuzz.damage import damage_bytes, misplace

AXES = "row,col,coil,slice"
"""Names of the axes of arrays."""
_ODD_SIZES = ["", "0 3", "-1 2", "18 20 1 4 3", "9" * 30, "18 20", "1 1 1 1 1", "\x1b[31m", "x"]


def good_kspace(volumes: Path, suffix: str) -> None:
    """Write three valid volumes."""
    for seed in (1, 2, 3):
        path = volumes / f"good{seed}{suffix}"
        kspace = coil_kspace(2, 4, 18, 20, seed=seed, noise=0.01).numpy()
        if suffix == ".cfl":
            _write_bart(path, kspace)
        else:
            np.save(path, kspace.transpose(2, 3, 1, 0))


def _write_bart(path: Path, kspace: np.ndarray) -> None:
    n_slices, n_coils, n_rows, n_cols = kspace.shape
    sizes = [n_rows, n_cols, 1, n_coils, *[1] * 9, n_slices, 1, 1]
    path.with_suffix(".hdr").write_text(f"# Dimensions\n{' '.join(map(str, sizes))}\n")
    path.write_bytes(kspace.transpose(2, 3, 1, 0).astype("<c8").tobytes(order="F"))


def _spoil(draw: random.Random, path: Path) -> str:
    return (damage_bytes if draw.random() < 0.8 else misplace)(draw, path)


def bart(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.cfl"
    _write_bart(path, coil_kspace(2, 4, 18, 20, noise=0.01).numpy())
    if draw.random() < 0.4:
        return _spoil(draw, path)
    if draw.random() < 0.5:
        return _spoil(draw, path.with_suffix(".hdr"))
    sizes = draw.choice(_ODD_SIZES)
    path.with_suffix(".hdr").write_text(f"# Dimensions\n{sizes}\n")
    return f"bad.hdr says {sizes[:20]!r}"


def fastmri(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.h5"
    kspace = coil_kspace(2, 4, 18, 20, noise=0.01).numpy()
    odd = draw.choice(["", "", "link", "huge", "axes", "group", "lines", "mask", "header", "zeros"])
    with h5py.File(path, "w") as file:
        if odd == "link":
            file["kspace"] = h5py.ExternalLink("/etc/hostname", "/x")
        elif odd == "huge":
            side = draw.choice((2**14, 2**24, 2**40))
            chunks = (1, 1, 2**10, 2**10)
            file.create_dataset("kspace", (2, 4, side, side), "c8", chunks=chunks)
        elif odd == "axes":
            file["kspace"] = draw.choice([kspace[0, 0], kspace[None], kspace.real, kspace[:0]])
        elif odd == "group":
            file.create_group(draw.choice(("kspace", "kspace/data", "dataset/data")))
        else:
            if odd == "lines":
                kspace[1, 2, 3] = draw.choice((np.nan, np.inf, 1e38, 0))
            file["kspace"] = kspace * (odd != "zeros")
        if odd == "mask":
            file["mask"] = draw.choice([np.zeros(20), np.ones(7), np.arange(20) % 2, "text"])
        if odd == "header":
            file["ismrmrd_header"] = draw.choice(["<a>", "<!DOCTYPE a>", mrd_files.header(), "x"])
    return f"bad.h5 {odd}" if odd else _spoil(draw, path)


def mrd(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.mrd"
    rows = list(mrd_files.lines())
    if draw.random() < 0.4:
        mrd_files.write(path, rows)
        return _spoil(draw, path)
    if draw.random() < 0.5:
        name = draw.choice([*(mrd_files.HEAD.names or ()), *mrd_files.COUNTERS])
        value = draw.choice((0, 1, 7, 255, 65535))
        for row in draw.sample(rows, draw.choice((1, 5, len(rows)))):
            if name != "idx":
                (row.head["idx"] if name in mrd_files.COUNTERS else row.head)[name] = value
        mrd_files.write(path, rows)
        return f"bad.mrd {name} = {value}"
    text = mrd_files.header()
    for _ in range(draw.choice((1, 3))):
        place = draw.randrange(len(text))
        text = (
            text[:place] + draw.choice(("", "<", "9", "99999999", "-", "\x1b")) + text[place + 1 :]
        )
    mrd_files.write(path, rows, text)
    return "bad.mrd header"


def twix(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.dat"
    twix_files.write(path, twix_files.blocks())
    if draw.random() < 0.4:
        return _spoil(draw, path)
    content = bytearray(path.read_bytes())
    begin = 10240 + int.from_bytes(content[10240:10244], "little")
    n_bytes = 192 + twix_files.N_COILS * (32 + 8 * twix_files.N_ROWS)
    place = draw.choice(
        [0, 4, 16, 10240]
        + [begin + n_bytes * draw.randrange(20) + at for at in (0, 40, 48, 50, 52, 84, 96)]
    )
    value = draw.choice((0, 1, 2, 32, 255, 65535))
    content[place : place + 2] = value.to_bytes(2, "little")
    path.write_bytes(content)
    return f"bad.dat byte {place} = {value}"


def matlab(draw: random.Random, folder: Path) -> str:
    path = folder / "bad.mat"
    kspace = coil_kspace(2, 4, 18, 20, noise=0.01).numpy().transpose(2, 3, 1, 0)
    odd = draw.choice(["", "", "", "real", "axes", "cell", "two", "none", "empty"])
    values = {
        "real": {"k": kspace.real},
        "axes": {"k": kspace[0]},
        "cell": {"k": np.array([kspace, "text"], dtype=object)},
        "two": {"k": kspace, "l": kspace},
        "none": {},
        "empty": {"k": kspace[:0]},
    }
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, values.get(odd, {"k": kspace}), do_compression=draw.random() < 0.5)
    content = buffer.getvalue()
    # The text at the head tells the time of writing, and a case is the same bytes every time.
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(116) + content[116:])
    return f"bad.mat {odd}" if odd else _spoil(draw, path)


RAW_FORMATS: dict[str, tuple[Callable[[random.Random, Path], str], str]] = {
    "bart": (bart, ".cfl"),
    "fastmri raw": (fastmri, ".cfl"),
    "mrd": (mrd, ".cfl"),
    "twix": (twix, ".cfl"),
    "matlab": (matlab, ".npy"),
}
"""What builds a bad file, and the end of the names of good ones beside it."""
