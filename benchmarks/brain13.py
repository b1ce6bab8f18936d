"""A real 13-coil brain: import and reconstructions of one slice, as a picture and a record.

The k-space is that of `test/VFA_cart_smalltest.h5` in the source distribution of pyqmri 1.3.0
(Apache License 2.0), ten flip angles of one slice, with DC at index 0:

    python benchmarks/brain13.py VFA_cart_smalltest.h5 --work runs/brain13
"""

import argparse
import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Complex64
from PIL import Image

from kscout.files import write_json

ROOT = Path(__file__).parents[1]
PICTURE, RECORD = ROOT / "docs/images/brain13.png", ROOT / "benchmarks/brain13.json"
METHODS = ("zero-filled", "sense", "sense-tv")
BLIND = ("--protocol", "blind", "--n-initial", "24", "--steps", "50")
WIDTH = 900
"""Pixels of the picture in the docs."""


def read(path: Path) -> Complex64[np.ndarray, "flip coil row col"]:
    """Return k-space with its center in the middle, the brightest image's peak being about 1."""
    with h5py.File(path) as file:
        kspace = file["real_dat"][:, :, 0] + 1j * file["imag_dat"][:, :, 0]
    # The plain transform has the head in the middle; the centered one is to have it there.
    images = np.fft.ifft2(kspace, norm="ortho")
    kspace = np.fft.fft2(np.fft.ifftshift(images, axes=(-2, -1)), norm="ortho")
    peak = np.sqrt((np.abs(images) ** 2).sum(axis=1)).max()
    return (np.fft.fftshift(kspace, axes=(-2, -1)) / peak).astype(np.complex64)


def run(source: Path, work: Path, more: Sequence[str]) -> dict[str, Any]:
    """Import the file, reconstruct one slice of it, and return the record."""
    work.mkdir(parents=True, exist_ok=True)
    np.save(work / "brain13.npy", read(source))
    store, out = str(work / "store"), work / "analysis"
    place = ["data", "import", str(work / "brain13.npy"), "--out", store]
    commands = [[*place, "--axes", "slice,coil,row,col"]] if not (work / "store").exists() else []
    compare = ["analyze", "reconstructions", *METHODS, *more, "--data", store, *BLIND]
    compare += ["--slice", "3", "--out", str(out), "--overwrite"]
    for words in (*commands, compare):
        subprocess.run([sys.executable, "-m", "kscout", *words], check=True)
    with (out / "reconstructions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with Image.open(next(out.glob("reconstructions-*.png"))) as picture:
        size = (WIDTH, picture.height * WIDTH // picture.width)
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.quantize(128).save(PICTURE, optimize=True)
    kept = ("ssim", "psnr", "nmse")
    found = {row["reconstruction"]: {key: float(row[key]) for key in kept} for row in rows}
    return {"source": source.name, "found": found}


def main() -> None:
    """Write the picture of the docs and the record beside this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="VFA_cart_smalltest.h5")
    parser.add_argument("--work", type=Path, default=Path("runs/brain13"))
    parser.add_argument("--more", action="append", default=[], help="NAME=RUN, beside the others")
    wanted = parser.parse_args()
    write_json(RECORD, run(wanted.source, wanted.work, wanted.more))


if __name__ == "__main__":
    main()
