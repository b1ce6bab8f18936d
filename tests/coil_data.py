"""Small k-space of several coils, with the images and sensitivities that it was made of."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex, Complex64, Float
from torch import Tensor

from kscout.data import ImportSettings, import_folder
from kscout.data.kinds import KSPACE
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.physics.fourier import fft2c

Images = Float[Tensor, "slice row col"]
Maps = Complex[Tensor, "coil row col"]


def coil_images(
    n_slices: int, n_coils: int, n_rows: int, n_cols: int, seed: int = 0
) -> tuple[Images, Maps]:
    """Return blobs in air, and smooth complex sensitivities of coils around them.

    The sum of squares of the sensitivities is one everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.linspace(-1, 1, n_rows)[:, None]
    cols = torch.linspace(-1, 1, n_cols)[None, :]
    images = torch.zeros(n_slices, n_rows, n_cols)
    for _ in range(5):
        y, x, width, height = torch.rand(4, n_slices, 1, 1, generator=generator)
        place = ((rows - y + 0.5) / (0.2 + 0.3 * height)) ** 2
        images += torch.exp(-place - ((cols - x + 0.5) / (0.2 + 0.3 * width)) ** 2)
    images *= rows**2 + cols**2 < 0.9
    angles = 2 * torch.pi * torch.arange(n_coils)[:, None, None] / n_coils
    near = torch.exp(-((rows - angles.sin()) ** 2 + (cols - angles.cos()) ** 2) / 2)
    maps = near * torch.exp(1j * (angles + rows * angles.cos() - cols * angles.sin()))
    maps = maps / maps.abs().square().sum(dim=0).sqrt()
    return images, maps.to(torch.complex64)


def coil_kspace(
    n_slices: int, n_coils: int, n_rows: int, n_cols: int, seed: int = 0, noise: float = 0.0
) -> Complex[Tensor, "slice coil row col"]:
    """Return the full k-space of `coil_images`, with complex noise of a deviation."""
    images, maps = coil_images(n_slices, n_coils, n_rows, n_cols, seed)
    kspace = fft2c(images[:, None] * maps)
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randn(kspace.shape, dtype=kspace.dtype, generator=generator)
    return kspace + noise * 2**0.5 * drawn


def coil_store(
    path: Path,
    *,
    n_coils: int = 4,
    size: tuple[int, int] = (18, 20),
    noise: float = 0.0,
    virtual: tuple[int, int] | None = None,
) -> Store:
    """Write two volumes for training, one for validation and one for test, of three slices each.

    Args:
        path: of the store.
        n_coils: of each slice.
        size: rows and columns.
        noise: its deviation.
        virtual: what the store tells of a compression of its coils.
    """
    with StoreWriter(path, {"made by": "tests"}, kind=KSPACE) as writer:
        names = ("train-0", "train-1", "val-0", "test-0")
        for seed, name in enumerate(names):
            kspace = coil_kspace(3, n_coils, *size, seed=seed, noise=noise)
            writer.append(name.split("-")[0], name, kspace.numpy())
        return writer.finish(virtual=virtual)


COIL_KSPACE = coil_kspace(3, 4, 18, 20, noise=0.001).numpy()
"""Three slices of four coils."""
AXES = ("slice", "coil", "row", "col")


def imported(source: Path, name: str = "store", **settings: Any) -> Store:
    """Import a file into a store beside it."""
    return import_folder(source, source.parent / name, ImportSettings(**settings))


def imported_array(folder: Path, kspace: np.ndarray, name: str = "store", **settings: Any) -> Store:
    """Save k-space of slice x coil x row x col in a folder and import it into a store there."""
    np.save(folder / "a.npy", kspace)
    return imported(folder / "a.npy", name, axes=AXES, **settings)


def stored(store: Store, split: str = "test") -> Complex64[np.ndarray, "slice coil row col"]:
    """Return the k-space of all slices of a split."""
    slices = store.measured(split)
    return slices.batch(torch.arange(len(slices))).kspace.numpy()
