"""Folders as those of fastMRI, with small volumes of noise."""

from pathlib import Path

import h5py
import numpy as np

from kscout.data import ImportSettings

SETTINGS = ImportSettings(size=7)

IMAGES = np.random.default_rng(0).random((4, 12, 12), dtype=np.float32)


def write_volume(
    path: Path, images: np.ndarray | None = None, acquisition: str = "CORPD_FBK"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if images is None:
        seed = sum(path.stem.encode())
        images = np.random.default_rng(seed).random((4, 12, 12), dtype=np.float32)
    with h5py.File(path, "w") as file:
        file["reconstruction_esc"] = images
        file.attrs["acquisition"] = acquisition
    return path


def write_layout(root: Path, **counts: int) -> Path:
    number = 0
    for split, count in counts.items():
        for _ in range(count):
            write_volume(root / f"singlecoil_{split}" / f"file{number}.h5")
            number += 1
    return root
