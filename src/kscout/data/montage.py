"""A picture of many slices at once, to look at a store before trusting it."""

from pathlib import Path

import numpy as np

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
    array = store.array(split, size=size)
    stored = store.images(split, size=array.size)
    chosen = np.unique(np.linspace(0, len(stored) - 1, n_images).round().astype(int))
    table = [
        (record, number) for record in store.records(split, array.size) for number in record.slices
    ]
    ranges = np.array([table[i][0].data_range for i in chosen], dtype=np.float32)
    shown = np.clip(stored[chosen] / ranges[:, None, None], 0, 1)
    png.save_montage(path, shown)
    return [f"{table[i][0].volume}:{table[i][1]}" for i in chosen]
