"""What varies between the epochs of a training: mirrored slices, and masks.

Each slice draws one pair of acceleration and center fraction of its mask (arXiv 2010.16262, after
1811.08839). The center is always measured, any other column with the probability that makes the
expected number of columns N / acceleration.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from kscout.core import SliceBatch
from kscout.physics.fourier import opposite
from kscout.physics.sampling import center_mask
from kscout.randomness import keyed_generator


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
