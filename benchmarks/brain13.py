"""A real 13-coil brain: import and reconstructions of one slice, as pictures and a record.

The k-space is that of `test/VFA_cart_smalltest.h5` in the source distribution of pyqmri 1.3.0
(Apache License 2.0), ten flip angles of one slice, with DC at index 0:

    python benchmarks/brain13.py VFA_cart_smalltest.h5 --work runs/brain13
    python benchmarks/brain13.py VFA_cart_smalltest.h5 --more varnet=heads8-varnet

`benchmarks/tables.py` writes the table of docs/coils.md from the record.
"""

import argparse
import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Complex64
from PIL import Image
from readme_picture import in_both_lights
from tables import markdown, number

from kscout.evaluation.analyses.reconstructions import Reconstructions
from kscout.files import write_json

ROOT = Path(__file__).parents[1]
PICTURE, RECORD = ROOT / "docs/images/brain13.webp", ROOT / "benchmarks/brain13.json"
METHODS = ("zero-filled", "sense", "sense-tv")
BLIND = ("--protocol", "blind", "--n-initial", "24", "--steps", "50")
RULES = ("rss", "weighted")
SCORES = {"NMSE": "nmse", "SSIM": "ssim"}
WIDTH = 900
"""Pixels of the picture in the docs."""


def read(path: Path) -> Complex64[np.ndarray, "flip coil row col"]:
    """Return k-space as it lies there."""
    with h5py.File(path) as file:
        kspace = file["real_dat"][:, :, 0] + 1j * file["imag_dat"][:, :, 0]
    return kspace.astype(np.complex64)


def run(source: Path, work: Path, target: str, more: Sequence[str]) -> dict[str, dict[str, float]]:
    """Import the file with targets of a rule, reconstruct one slice, and return the scores."""
    (work / target).mkdir(parents=True, exist_ok=True)
    array, store, out = work / "brain13.npy", work / target / "store", work / target / "analysis"
    np.save(array, read(source))
    place = ["data", "import", str(array), "--out", str(store), "--axes", "slice,coil,row,col"]
    place += ["--origin", "plain", "--target", target]
    compare = ["analyze", "reconstructions", *METHODS, *more, "--data", str(store), *BLIND]
    compare += ["--slice", "3", "--out", str(out), "--overwrite"]
    for words in (compare,) if store.exists() else (place, compare):
        subprocess.run([sys.executable, "-m", "kscout", *words], check=True)
    with (out / "reconstructions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    draw(out)
    kept = ("ssim", "psnr", "nmse")
    return {row["reconstruction"]: {key: float(row[key]) for key in kept} for row in rows}


def draw(analysis: Path) -> None:
    """Write the picture of an analysis for the docs, light and dark."""
    (figure,) = Reconstructions().figures([], analysis).values()
    for place, paper in in_both_lights(figure, PICTURE):
        with io.BytesIO() as file:
            figure.savefig(file, dpi=2 * WIDTH / figure.get_figwidth(), facecolor=paper)
            large = Image.open(file).convert("RGB")
        size = (WIDTH, large.height * WIDTH // large.width)
        small = large.resize(size, Image.Resampling.LANCZOS)
        small.save(place, quality=85, method=6)


def table() -> str:
    """Return the table of docs/coils.md: errors and SSIM by both rules of targets."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))["found"]
    head = [f"{score}, target `{rule}`" for rule in RULES for score in SCORES]
    lines = [
        [
            f"`{name}`",
            *(number(found[rule][name][key]) for rule in RULES for key in SCORES.values()),
        ]
        for name in found["rss"]
    ]
    return markdown(["reconstruction", *head], lines)


def words() -> str:
    """Return how `varnet` compares with the others, where it has been tried."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))["found"]
    if "varnet" not in found["rss"]:
        return "`varnet` has not been tried on it yet.\n"
    places, ahead = [], set()
    for rule in RULES:
        ranks = []
        for score, key in SCORES.items():
            values = {name: own[key] for name, own in found[rule].items()}
            order = sorted(values, key=values.__getitem__, reverse=key == "ssim")
            ranks.append(f"number {order.index('varnet') + 1} by {score}")
            ahead |= {order[0]} - {"varnet"}
        places.append(f"{' and '.join(ranks)} with target `{rule}`")
    first = " and ".join(f"`{name}`" for name in sorted(ahead))
    told = f"Where it is not first, {first} is.\n" if ahead else ""
    return (
        "`varnet` is `heads8-varnet` of the zoo, which has seen simulated coils around heads of\n"
        f"128 x 128 pixels alone, with targets `rss`. Of the {len(found['rss'])} it is "
        f"{places[0]},\n{places[1]}. {told}"
    )


def main() -> None:
    """Write the pictures of the docs and the record beside this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="VFA_cart_smalltest.h5")
    parser.add_argument("--work", type=Path, default=Path("runs/brain13"))
    parser.add_argument("--more", action="append", default=[], help="NAME=RUN, beside the others")
    wanted = parser.parse_args()
    found = {target: run(wanted.source, wanted.work, target, wanted.more) for target in RULES}
    write_json(RECORD, {"source": wanted.source.name, "found": found})


if __name__ == "__main__":
    main()
