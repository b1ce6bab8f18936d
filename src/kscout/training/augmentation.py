"""What varies between the epochs of a training: mirrored, magnified or smaller slices, and masks.

Each slice draws one pair of acceleration and center fraction of its mask (arXiv 2010.16262, after
1811.08839). The center is always measured, any other column with the probability that makes the
expected number of columns N / acceleration.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor
from torch.nn import functional as F

from kscout.config import VariedSlices
from kscout.core import SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c, frequencies, ifft2c, opposite
from kscout.physics.normalization import denormalize, magnitude, normalize
from kscout.physics.sampling import center_mask
from kscout.randomness import keyed_generator

N_VARIED = 2
"""Random numbers of a slice: whether it is mirrored, and its zoom."""


def varied(
    batch: SliceBatch, numbers: Float[Tensor, "slice number"], training: VariedSlices
) -> SliceBatch:
    """Return slices of which some are mirrored or magnified."""
    if training.flips:
        batch = mirrored(batch, is_flipped(numbers, training))
    if training.zoom > 1:
        batch = zoomed(batch, _factors(numbers[:, 1], training.zoom))
    return batch


def is_flipped(
    numbers: Float[Tensor, "slice number"], training: VariedSlices
) -> Bool[Tensor, " slice"]:
    """Return the slices that `varied` mirrors."""
    return (numbers[:, 0] < 0.5) & training.flips


def _factors(numbers: Float[Tensor, " slice"], zoom: float) -> Float[Tensor, " slice"]:
    """Return zoom factors; half of them are 1, because zoomed slices lose noise and edges."""
    return torch.where(numbers < 0.5, torch.ones_like(numbers), zoom ** (4 * numbers - 3))


def check_varied(training: VariedSlices, kind: str) -> None:
    """Raise an error for a zoom of k-space."""
    if training.zoom > 1 and kind != IMAGES.name:
        raise ConfigError(f"training.zoom is for images, the store holds {kind}; leave it out")


def mirrored(batch: SliceBatch, is_mirrored: Bool[Tensor, " slice"]) -> SliceBatch:
    """Return slices of which some are mirrored left to right, about the center pixel."""
    n_cols, device = batch.n_cols, batch.kspace.device
    opposites, own = opposite(n_cols, device), torch.arange(n_cols, device=device)
    columns = torch.where(is_mirrored[:, None], opposites, own)
    images = columns[:, None].expand(batch.target.shape)
    return replace(
        batch,
        kspace=batch.kspace.gather(-1, columns[:, None, None].expand(batch.kspace.shape)),
        target=batch.target.gather(-1, images),
        selectable=batch.selectable.gather(-1, columns),
    )


def zoomed(batch: SliceBatch, factor: Float[Tensor, " slice"]) -> SliceBatch:
    """Return slices of real images magnified about their center; the outside is zero.

    A reduced slice is the image of a scanner with a larger field of view. Details finer than its
    pixels are removed first, to avoid aliasing.
    """
    n_rows, n_cols = batch.kspace.shape[-2:]
    y, x = _places(n_rows, n_cols, factor.device)
    scale = factor[:, None, None]
    is_seen = torch.maximum(y.abs(), x.abs()) <= scale.clamp(max=1) / 2
    image = _sampled(batch.kspace * is_seen[:, None], y / scale, x / scale)
    found = _with_images(batch, image, batch.selectable)
    is_same = factor == 1

    def kept(name: str) -> Tensor:
        own = getattr(batch, name)
        return torch.where(is_same.view(-1, *[1] * (own.ndim - 1)), own, getattr(found, name))

    names = ("kspace", "target", "target_mean", "target_std")
    return replace(found, **{name: kept(name) for name in names})


def _places(
    n_rows: int, n_cols: int, device: torch.device
) -> tuple[Float[Tensor, "row col"], Float[Tensor, "row col"]]:
    rows, cols = (frequencies(n, device) / n for n in (n_rows, n_cols))
    y, x = torch.meshgrid(rows, cols, indexing="ij")
    return y, x


def _sampled(
    kspace: Complex[Tensor, "slice 1 row col"],
    at_y: Float[Tensor, "slice row col"],
    at_x: Float[Tensor, "slice row col"],
) -> Float[Tensor, "slice 1 row col"]:
    """Return real images interpolated at coordinates in fields of view from the center.

    They are first interpolated exactly to twice the points, by zeros around k-space: cubic
    interpolation at the original points would attenuate the outer columns.
    """
    n_rows, n_cols = kspace.shape[-2:]
    # The center of k-space, n // 2, moves to n.
    around = [part for n in (n_cols, n_rows) for part in (n - n // 2, n // 2)]
    image = 2 * ifft2c(F.pad(kspace, around)).real
    # -1 and 1 are the outer edges of the outer pixels, and pixel n is the center.
    grid = torch.stack([2 * at_x + 0.5 / n_cols, 2 * at_y + 0.5 / n_rows], dim=-1)
    found = F.grid_sample(image, grid, mode="bicubic", align_corners=False)
    return found.clamp(min=0)


def coarser(batch: SliceBatch, n_cols: int) -> SliceBatch:
    """Return slices downsampled to fewer columns, and rows in proportion, with equal field of view.

    A scanner measures such slices without the outer part of k-space. Slices with this number of
    columns are unchanged.
    """
    if n_cols == batch.n_cols:
        return batch
    n_rows = batch.kspace.shape[-2] * n_cols // batch.n_cols
    rows, cols = map(_central, batch.kspace.shape[-2:], (n_rows, n_cols))
    scale = (n_rows * n_cols / batch.target[0].numel()) ** 0.5
    image = magnitude(ifft2c(batch.kspace[..., rows, cols]) * scale)
    return _with_images(batch, image[:, None], batch.selectable[:, cols])


def coarser_slices(slices: SliceSet, n_cols: int) -> SliceSet:
    """Return downsampled slices, with the data range of the original volumes."""
    if n_cols == slices.n_cols:
        return slices
    batch = coarser(slices.batch(torch.arange(len(slices))), n_cols)
    # Not the targets, whose brightest pixels are clamped.
    images = magnitude(ifft2c(batch.kspace))
    found = SliceSet.from_images(images, slices.volumes)
    return replace(found, data_range=slices.data_range)


def _central(whole: int, n: int) -> slice:
    return slice(whole // 2 - n // 2, whole // 2 - n // 2 + n)


def check_sizes(sizes: Sequence[int], kind: str, n_cols: int) -> None:
    """Raise an error if slices cannot be downsampled to these sizes."""
    if sizes and kind != IMAGES.name:
        raise ConfigError(f"training.sizes is for images, the store holds {kind}; leave it out")
    if max(sizes, default=0) > n_cols:
        raise ConfigError(
            f"training.sizes {list(sizes)} go beyond the {n_cols} columns of the store; "
            "make one of larger images"
        )


def _with_images(
    batch: SliceBatch,
    image: Float[Tensor, "slice 1 row col"],
    selectable: Bool[Tensor, "slice col"],
) -> SliceBatch:
    normalized = normalize(image[:, 0])
    return replace(
        batch,
        kspace=fft2c(image),
        target=denormalize(*normalized),
        target_mean=normalized.mean,
        target_std=normalized.std,
        selectable=selectable,
    )


@final
class MaskDistribution:
    """A distribution of masks, given by pairs of acceleration and center fraction."""

    def __init__(
        self, n_cols: int, accelerations: Sequence[float], center_fractions: Sequence[float]
    ) -> None:
        self.n_cols = n_cols
        n_centers = [round(n_cols * fraction) for fraction in center_fractions]
        self.centers = torch.stack([center_mask(n_cols, n_center) for n_center in n_centers])
        self.probabilities = torch.tensor(
            [
                (n_cols / acceleration - n_center) / max(n_cols - n_center, 1)
                for acceleration, n_center in zip(accelerations, n_centers, strict=True)
            ],
            dtype=torch.float64,
        )

    def draw(self, n_slices: int, *key: int | str) -> Bool[Tensor, "slice col"]:
        """Sample one mask for each slice of a dataset; the key determines them."""
        generator = keyed_generator(*key)
        pair = torch.randint(len(self.probabilities), (n_slices,), generator=generator)
        uniform = torch.rand(n_slices, self.n_cols, dtype=torch.float64, generator=generator)
        return (uniform < self.probabilities[pair, None]) | self.centers[pair]

    def of_volume(self, volume: str) -> Bool[Tensor, " col"]:
        """Return the validation mask of a volume, whose name is the seed."""
        # NumPy's legacy generator, because the reference's masks come from it.
        random = np.random.RandomState(tuple(map(ord, volume)))
        pair = int(random.randint(0, len(self.probabilities)))
        uniform = torch.from_numpy(random.uniform(size=self.n_cols))
        return (uniform < self.probabilities[pair]) | self.centers[pair]

    def of_volumes(self, volumes: Sequence[str]) -> Bool[Tensor, "slice col"]:
        """Return the validation masks of slices from their volumes."""
        masks = {volume: self.of_volume(volume) for volume in dict.fromkeys(volumes)}
        return torch.stack([masks[volume] for volume in volumes])
