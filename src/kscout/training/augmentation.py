"""Variations of slices that cost no reading: mirrored, magnified or reduced, of another matrix."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from kscout.core import SliceBatch
from kscout.physics.fourier import fft2c, ifft2c, opposite
from kscout.physics.normalization import denormalize, magnitude, normalize


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
    return _with_images(batch, image, batch.selectable)


def coarser(batch: SliceBatch, n_cols: int) -> SliceBatch:
    """Return slices of images with fewer columns, and rows in proportion, of one field of view.

    They are what a scanner measures that leaves out the outer part of k-space. With as many
    columns as before they stay as they are.
    """
    if n_cols == batch.n_cols:
        return batch
    n_rows = batch.kspace.shape[-2] * n_cols // batch.n_cols
    rows, cols = (
        slice(whole // 2 - n // 2, whole // 2 - n // 2 + n)
        for whole, n in zip(batch.kspace.shape[-2:], (n_rows, n_cols), strict=True)
    )
    scale = (n_rows * n_cols / batch.target[0].numel()) ** 0.5
    image = magnitude(ifft2c(batch.kspace[..., rows, cols]) * scale)
    return _with_images(batch, image[:, None], batch.selectable[:, cols])


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
