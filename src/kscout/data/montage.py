"""A picture of many slices of a store, for visual inspection."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.columns import LEAST_CENTRAL
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.figures import png
from kscout.physics.coils import MOST_CENTRAL, combine, n_central, sensitivities
from kscout.physics.fourier import ifft2c

_DECADES = 5
"""Level below its peak at which k-space is drawn black."""


def save_montage(
    store: Store,
    path: Path,
    *,
    split: str = "",
    n_images: int = 24,
    size: int | tuple[int, int] | None = None,
    coils: bool = False,
) -> list[str]:
    """Write a PNG of slices spread evenly over a split, each scaled to its `data_range`.

    With `coils` there is a line of pictures per slice: the image, the logarithm of its k-space, and
    the image of each coil, scaled to its maximum; with several coils also their combination by
    sensitivities, its phase, and the sensitivities by ESPIRiT. The first split is the default.

    Returns:
        The volume and slice number of each picture, in reading order.
    """
    split = split or next(iter(store.manifest.splits))
    whole = store.measured(split, size=size, lazy=True)
    spread = np.unique(
        np.linspace(0, len(whole) - 1, min(n_images, len(whole))).round().astype(np.int64)
    )
    slices = whole.subset(torch.from_numpy(spread))
    if coils:
        lines = torch.cat([_line(slices, index) for index in torch.arange(len(slices)).split(1)])
        png.save_montage(path, lines.numpy(), n_across=slices.shape[0] + 2)
    else:
        shown = (slices.magnitudes() / slices.data_range[:, None, None]).clamp(0, 1)
        png.save_montage(path, shown.numpy())
    return [f"{v}:{number}" for v, number in zip(slices.volumes, slices.slices, strict=True)]


def _line(slices: SliceSet, index: Int[Tensor, "1"]) -> Float[Tensor, "picture row col"]:
    """Return the pictures of one slice: image, k-space, coil images and sensitivities."""
    batch = slices.batch(index)
    image = slices.magnitudes(index) / batch.data_range[:, None, None]
    strength = batch.kspace.abs().square().sum(dim=1).sqrt()
    coil_images = ifft2c(batch.kspace[0]).abs()
    spectrum = 1 + (strength / strength.amax()).clamp_min(10.0**-_DECADES).log10() / _DECADES
    pictures = [image, spectrum, coil_images / coil_images.amax().clamp_min(1e-30)]
    n_center = min(MOST_CENTRAL, int(n_central(batch.selectable)))
    if len(coil_images) > 1 and n_center >= LEAST_CENTRAL:
        maps = sensitivities(batch.kspace[0], n_center=n_center)
        whole = combine(ifft2c(batch.kspace[0]), maps)[None]
        pictures += [whole.abs() / batch.data_range[:, None, None]]
        pictures += [whole.angle() / (2 * torch.pi) + 0.5, maps.abs()]
    return torch.cat(pictures).clamp(0, 1)
