"""Write the sensitivities that `kscout data make --maps measured` takes: 13 coils around a brain.

    python lab/brain13_maps.py VFA_cart_smalltest.h5

brain13.py has the source of the file. ESPIRiT's maps of the head, from the sixth of its flip
angles, are averaged over cells and extended smoothly into the air around it.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from brain13 import read
from jaxtyping import Bool, Complex128, Float
from scipy import ndimage

from kscout.data.formats.raw import RawScan
from kscout.data.makers.coils import FILE
from kscout.physics.coils import sensitivities
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude

FLIP_ANGLE, N_CELLS = 5, 28
_SMOOTHNESS = 0.02
"""Weight of the second derivatives relative to the data of cells in the head."""
_AIR = 0.1
"""Of the brightest pixels: what is darker shows no head."""


def head_of(image: Float[np.ndarray, "row col"]) -> Bool[np.ndarray, "row col"]:
    """Return the largest bright part, without holes or fringes."""
    is_bright = ndimage.binary_opening(image > _AIR * np.percentile(image, 99.5), iterations=2)
    labels, _ = ndimage.label(is_bright)
    largest = labels == np.bincount(labels.ravel())[1:].argmax() + 1
    return np.asarray(ndimage.binary_fill_holes(largest))


def cell_means(
    maps: Complex128[np.ndarray, "coil row col"], is_head: Bool[np.ndarray, "row col"]
) -> tuple[Complex128[np.ndarray, "coil cell"], Float[np.ndarray, " cell"]]:
    """Return the mean of each cell over pixels of the head, and their share."""
    n = maps.shape[-1] // N_CELLS

    def sums(values: np.ndarray) -> np.ndarray:
        cells = values.reshape(*values.shape[:-2], N_CELLS, n, N_CELLS, n)
        return cells.sum(axis=(-3, -1)).reshape(*values.shape[:-2], -1)

    count = sums(is_head.astype(np.float64))
    return sums(maps * is_head) / np.maximum(count, 1), count / n**2


def continued(
    means: Complex128[np.ndarray, "coil cell"], share: Float[np.ndarray, " cell"]
) -> Complex128[np.ndarray, "coil cell"]:
    """Return cells that follow the means where there is a head, and bend little elsewhere."""
    bend = np.diff(np.eye(N_CELLS), n=2, axis=0)
    one = np.eye(N_CELLS)
    rough = [np.kron(bend, one), np.kron(one, bend)]
    normal = np.diag(share) + _SMOOTHNESS * sum(part.T @ part for part in rough)
    return np.linalg.solve(normal, (share * means).T).T


def main() -> None:
    """Write the maps into the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("source", type=Path)
    whole = read(parser.parse_args().source)
    scan = RawScan(whole.shape, lambda first, last: whole[first:last]).centered("plain")
    kspace = torch.from_numpy(scan.read(FLIP_ANGLE, FLIP_ANGLE + 1)[0]).to(torch.complex64)
    maps = sensitivities(kspace, n_center=24).numpy().astype(np.complex128)
    image = magnitude(ifft2c(kspace)[None])[0].numpy()
    is_head = head_of(image)
    means, share = cell_means(maps, is_head)
    found = continued(means, share)
    error = np.linalg.norm((found - means) * share) / np.linalg.norm(means * share)
    print(f"{is_head.mean():.2f} of the pixels show the head; smoothing changes {error:.3f}")
    cells = found.reshape(-1, N_CELLS, N_CELLS)
    np.savez_compressed(FILE, maps=np.stack([cells.real, cells.imag], axis=-1).astype(np.float16))


if __name__ == "__main__":
    main()
