"""A picture of many slices at once, to look at a store before trusting it."""

from pathlib import Path

import numpy as np
import torch

from kscout.data.store import Store
from kscout.figures import png


def save_montage(
    store: Store, path: Path, *, split: str = "", n_images: int = 24, size: int | None = None
) -> list[str]:
    """Write a PNG of slices spread evenly over a split, each bright up to its `data_range`.

    Returns:
        The volume and slice number of each picture, in reading order.
    """
    split = split or next(iter(store.manifest.splits))
    whole = store.split(split, size=size, lazy=True)
    spread = np.unique(
        np.linspace(0, len(whole) - 1, min(n_images, len(whole))).round().astype(np.int64)
    )
    slices = whole.subset(torch.from_numpy(spread))
    shown = (slices.magnitudes() / slices.data_range[:, None, None]).clamp(0, 1)
    png.save_montage(path, shown.numpy())
    return [f"{v}:{number}" for v, number in zip(slices.volumes, slices.slices, strict=True)]
