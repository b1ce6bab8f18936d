"""A real brain, 13 coils: import and reconstructions of one slice, as a picture and rows.

    python lab/brain13.py VFA_cart_smalltest.h5 --more varnet=heads8-varnet

The k-space is that of `test/VFA_cart_smalltest.h5` in the source distribution of pyqmri 1.3.0
(Apache License 2.0): ten flip angles of one slice, with DC at index 0.
"""

import csv
import io
from pathlib import Path

import h5py
import numpy as np
from commands import kscout, parser
from jaxtyping import Complex64
from PIL import Image
from readme_picture import in_both_lights
from results import record, result

from kscout.evaluation.analyses.reconstructions import Reconstructions
from kscout.provenance import commit

PICTURE = Path(__file__).parents[1] / "docs/images/brain13.webp"
METHODS = ("zero-filled", "sense", "sense-tv")
BUDGET = ("--protocol", "blind", "--n-initial", 24, "--steps", 50)
TARGETS = {"rss": "root sum of squares", "weighted": "weighted by coil maps"}
WIDTH = 900
"""Pixels of the picture in the docs."""


def read(path: Path) -> Complex64[np.ndarray, "flip coil row col"]:
    """Read the k-space as it is stored."""
    with h5py.File(path) as file:
        kspace = file["real_dat"][:, :, 0] + 1j * file["imag_dat"][:, :, 0]
    return kspace.astype(np.complex64)


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


def main() -> None:
    """Import with both kinds of targets, reconstruct, draw and record."""
    options = parser(__doc__)
    options.add_argument("source", type=Path, help="VFA_cart_smalltest.h5")
    options.add_argument("--more", action="append", default=[], metavar="NAME=RUN")
    asked = options.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    array = asked.work / "brain13.npy"
    np.save(array, read(asked.source))
    for target, description in TARGETS.items():
        data, out = asked.work / target / "data", asked.work / target / "analysis"
        layout = ("--axes", "slice,coil,row,col", "--origin", "plain", "--target", target)
        kscout("data", "import", array, "--out", data, *layout)
        compare = (*METHODS, *asked.more, "--data", data, *BUDGET, "--slice", 3)
        command = kscout("analyze", "reconstructions", *compare, "--out", out, "--overwrite")
        draw(out)
        with (out / "reconstructions.csv").open(newline="") as file:
            found = list(csv.DictReader(file))
        common = {"experiment": "brain13", "store": "heads-brain13", "split": "test"}
        common |= {"n_slices": 1, "n_volumes": 1, "protocol": "blind", "n_seeds": 1}
        common |= {"method": f"reference {description}", "commit": commit(), "command": command}
        record(
            [
                result(
                    **{**common, "reconstruction": one["reconstruction"], "metric": metric},
                    **{"statistic": "mean", "value": float(one[metric])},
                )
                for one in found
                for metric in ("ssim", "psnr")
            ]
        )


if __name__ == "__main__":
    main()
