"""Variations of slices that cost no reading: mirrored, magnified or reduced."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from kscout.core import SliceBatch
from kscout.physics.fourier import fft2c, ifft2c, opposite
from kscout.physics.normalization import denormalize, normalize


def mirrored(batch: SliceBatch, is_mirrored: Bool[Tensor, " slice"]) -> SliceBatch:
    """Return slices of which some are mirrored left to right, at the pixel of the center."""
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
    """Return slices of real images magnified about their center; what is outside is dark."""
    image = ifft2c(batch.kspace).real
    zeros = torch.zeros_like(factor)
    rows = [
        torch.stack(x, dim=-1) for x in ((1 / factor, zeros, zeros), (zeros, 1 / factor, zeros))
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(image.shape), align_corners=False)
    image = F.grid_sample(image, grid, align_corners=False)
    normalized = normalize(image[:, 0])
    return replace(
        batch,
        kspace=fft2c(image),
        target=denormalize(*normalized),
        target_mean=normalized.mean,
        target_std=normalized.std,
    )
