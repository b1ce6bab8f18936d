"""Heads in two megabytes, for machines that cannot download them: downsampled, few gray levels.

    python lab/small_heads.py ~/.cache/kscout/heads --out heads-small

Slices of 128x128 pixels show a head at 2 mm. Each volume is cut below what slices reach, resampled
to `--spacing` and rounded to `--levels` gray values, whose steps stay below the noise that makers
add. `OUT/NAME.nii.gz` replaces the head (`data make heads --source`), and `OUT/sources.json` states
the changes.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
from jaxtyping import Float
from scipy import ndimage

from kscout.data.makers.heads import HEAD_SOURCES, SOURCES_FILE, Head, load_heads
from kscout.files import write_json

DEPTH = 0.8
"""Depth below the crown that slices reach, tilted ones included, relative to the length."""
BRIGHTEST = 1.3
"""Largest value of a head as it is loaded."""


def smaller(head: Head, spacing_mm: float) -> Head:
    """Crop a head to the depth that slices reach and downsample it to a spacing."""
    depth = round(DEPTH * head.length_mm / head.spacing_mm[2])
    factors = [min(1.0, own / spacing_mm) for own in head.spacing_mm]
    values = ndimage.zoom(head.values[..., -depth:], factors, order=3)
    kept = tuple(own / factor for own, factor in zip(head.spacing_mm, factors, strict=True))
    return replace(head, values=values, spacing_mm=kept)


def save(
    path: Path,
    values: Float[np.ndarray, "right front up"],
    spacing_mm: Sequence[float],
    n_levels: int,
) -> None:
    """Write values between 0 and `BRIGHTEST` with `n_levels` gray levels."""
    gray = np.clip(values / BRIGHTEST, 0, 1) * (n_levels - 1)
    image = nibabel.Nifti1Image(np.round(gray).astype(np.uint8), np.diag([*spacing_mm, 1.0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the small heads, and say how large they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("heads", type=Path, help="folder of `data make heads --download`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--spacing", type=float, default=1.8, help="mm")
    parser.add_argument("--levels", type=int, default=48)
    wanted = parser.parse_args(arguments)
    entries = json.loads((wanted.heads / SOURCES_FILE).read_text(encoding="utf-8"))
    paths = [wanted.heads / entry["file"] for entry in entries]
    for path, head in zip(paths, load_heads(paths), strict=True):
        small = smaller(head, wanted.spacing)
        save(wanted.out / path.name, small.values, small.spacing_mm, wanted.levels)
    for entry in entries:
        entry["source"] += f", no finer than {wanted.spacing} mm, {wanted.levels} gray levels"
    write_json(wanted.out / SOURCES_FILE, entries)
    n_bytes = sum(file.stat().st_size for file in wanted.out.rglob("*.*"))
    print(f"{wanted.out}: {len(entries)} of {len(HEAD_SOURCES)} heads, {n_bytes / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
