"""A picture of many slices at once, to look at a store before trusting it."""

import math
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from kscout.data.store import Store
from kscout.files import written_whole

_GAP = 2


def montage(
    images: Float32[np.ndarray, "slice row col"], n_across: int
) -> Float32[np.ndarray, "height width"]:
    """Lay images in rows of `n_across`, a thin bright gap between them; values are kept."""
    n_images, n_rows, n_cols = images.shape
    n_down = math.ceil(n_images / n_across)
    cell = n_rows + _GAP, n_cols + _GAP
    page = np.ones((n_down * cell[0] - _GAP, n_across * cell[1] - _GAP), dtype=np.float32)
    for number, image in enumerate(images):
        top, left = number // n_across * cell[0], number % n_across * cell[1]
        page[top : top + n_rows, left : left + n_cols] = image
    return page


def save_montage(
    store: Store, path: Path, *, split: str = "", n_images: int = 24, size: int | None = None
) -> list[str]:
    """Write a PNG of slices spread evenly over a split, each bright up to its `data_range`.

    Returns:
        The volume and slice number of each picture, in reading order.
    """
    from matplotlib.image import imsave

    split = split or next(iter(store.manifest.splits))
    array = store.array(split, size=size)
    stored = store.images(split, size=array.size)
    chosen = np.unique(np.linspace(0, len(stored) - 1, n_images).round().astype(int))
    table = [
        (record, number) for record in store.records(split, array.size) for number in record.slices
    ]
    ranges = np.array([table[i][0].data_range for i in chosen], dtype=np.float32)
    shown = np.clip(stored[chosen] / ranges[:, None, None], 0, 1)
    page = montage(shown, n_across=math.ceil(math.sqrt(len(chosen) * 1.5)))
    with written_whole(path) as aside:
        imsave(aside, page, cmap="gray", vmin=0, vmax=1, format="png")
    return [f"{table[i][0].volume}:{table[i][1]}" for i in chosen]
