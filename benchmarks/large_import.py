"""Import a file of k-space that is larger than memory need be, and record the peak of memory.

    python benchmarks/large_import.py --gigabytes 2

Makes slices of 16 coils and 640 x 368, imports them as a user would, in a process of its own,
writes large_import.json beside this file and removes all that it made. docs/raw.md quotes it.
"""

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
import torch

from kscout.files import write_json

RECORD = Path(__file__).with_suffix(".json")
N_COILS, N_ROWS, N_COLS = 16, 640, 368
OPTIONS = ("--crop", "320x368", "--compress", "8")


def one_slice() -> np.ndarray:
    """Return noise with a bright center; content costs nothing to memory."""
    random = np.random.default_rng(0)
    parts = random.standard_normal((2, N_COILS, N_ROWS, N_COLS), dtype=np.float32)
    kspace = (parts[0] + 1j * parts[1]).astype(np.complex64)
    kspace[:, N_ROWS // 2, N_COLS // 2] *= 1000
    return kspace


def make_cfl(folder: Path, n_slices: int) -> Path:
    """Write BART's pair, slices last."""
    path, content = folder / "large.cfl", one_slice().transpose(1, 2, 0).tobytes(order="F")
    lengths = [N_ROWS, N_COLS, 1, N_COILS, *[1] * 9, n_slices, 1, 1]
    path.with_suffix(".hdr").write_text(f"# Dimensions\n{' '.join(map(str, lengths))}\n")
    with path.open("wb") as file:
        _repeat(file, content, n_slices)
    return path


def make_h5(folder: Path, n_slices: int) -> Path:
    """Write fastMRI's HDF5."""
    path, content = folder / "large.h5", one_slice()
    with h5py.File(path, "w") as file:
        kspace = file.create_dataset("kspace", (n_slices, *content.shape), content.dtype)
        for number in range(n_slices):
            kspace[number] = content
    return path


def _repeat(file: BinaryIO, content: bytes, n: int) -> None:
    for _ in range(n):
        file.write(content)


MAKERS = {"cfl": make_cfl, "h5": make_h5}


def peak_bytes() -> int:
    """Return the most memory that any process had which this one has waited for."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def run(*words: str) -> float:
    """Run kscout and return its seconds."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "kscout", *words], check=True)
    return time.monotonic() - begin


def measure(kind: str, n_bytes: int, folder: Path) -> dict[str, object]:
    """Import a file of about so many bytes."""
    n_slices = max(1, round(n_bytes / (8 * N_COILS * N_ROWS * N_COLS)))
    source = MAKERS[kind](folder, n_slices)
    small = MAKERS[kind](Path(tempfile.mkdtemp(dir=folder)), 1)
    run("data", "import", str(small), "--out", str(folder / "one"), *OPTIONS)
    of_one = peak_bytes()
    seconds = run("data", "import", str(source), "--out", str(folder / "store"), *OPTIONS)
    return {
        **{"format": kind, "n_slices": n_slices, "file_bytes": source.stat().st_size},
        **{"options": " ".join(OPTIONS), "seconds": round(seconds, 1)},
        **{"peak_bytes_of_one_slice": of_one, "peak_bytes": peak_bytes()},
        **{"machine": platform.machine(), "python": platform.python_version()},
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--format", choices=list(MAKERS), default="cfl")
    parser.add_argument("--work", type=Path, help="where the files may lie")
    parser.add_argument("--record", type=Path, default=RECORD)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.work) as folder:
        found = measure(wanted.format, int(1e9 * wanted.gigabytes), Path(folder))
    write_json(wanted.record, found)
    print(found)


if __name__ == "__main__":
    main()
