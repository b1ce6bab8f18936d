"""Slices of several coils, made: smooth sensitivities around disks."""

import torch
from torch import Tensor

from kscout.core import SliceBatch
from kscout.physics import fft2c, ifft2c
from kscout.physics.normalization import magnitude, statistics

N_COILS, N_ROWS, N_COLS = 4, 40, 33


def loops(n_coils: int, n_rows: int, n_cols: int) -> Tensor:
    """Smooth complex sensitivities of unit norm, strongest at places around the object."""
    row = torch.linspace(-1, 1, n_rows)[:, None]
    col = torch.linspace(-1, 1, n_cols)
    angle = 2 * torch.pi * torch.arange(n_coils)[:, None, None] / n_coils
    distance = (row - 1.3 * angle.cos()).square() + (col - 1.3 * angle.sin()).square()
    maps = torch.polar(1 / (0.5 + distance), 1.5 * angle + row * angle.sin() + col)
    return maps / torch.linalg.vector_norm(maps, dim=0)


def disks(n_rows: int, n_cols: int) -> Tensor:
    row = torch.linspace(-1, 1, n_rows)[:, None]
    col = torch.linspace(-1, 1, n_cols)
    image = (row.square() / 0.7 + col.square() / 0.5 < 1).float()
    return image - 0.5 * ((row - 0.2).square() + (col + 0.2).square() < 0.05).float()


def several_coils(n_rows: int = N_ROWS, n_cols: int = N_COLS) -> tuple[Tensor, Tensor, Tensor]:
    """Return full k-space of two slices, their maps, and their images."""
    maps = loops(N_COILS, n_rows, n_cols).expand(2, -1, -1, -1)
    image = torch.stack([disks(n_rows, n_cols), disks(n_rows, n_cols).flip(-1)])
    return fft2c(image[:, None] * maps), maps, image


def batch_of(kspace: Tensor) -> SliceBatch:
    """Return fully sampled k-space with its root sum of squares as the target."""
    target = magnitude(ifft2c(kspace))
    peak, index = target.amax(dim=(-2, -1)), torch.arange(len(target))
    selectable = torch.ones(len(target), target.shape[-1], dtype=torch.bool)
    return SliceBatch(kspace, target, *statistics(target), peak, selectable, index)


def coil_batch() -> SliceBatch:
    return batch_of(several_coils()[0])
